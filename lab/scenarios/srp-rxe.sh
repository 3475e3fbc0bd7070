#!/bin/bash
# lab: the same on rxe (RoCEv2), against the target's verbs provider
FABRIC=rxe
. "$(dirname "$0")/srp-attach.sh"
