#!/bin/bash
# lab: a host on siw (iWARP) attaches: 1 and 2 channels, fio, file systems, SCSI commands, reservations
FABRIC=siw
. "$(dirname "$0")/srp-attach.sh"
