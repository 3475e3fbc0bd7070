"""Bad peers of an SRP target over iWARP: hostile.py ADDRESS:PORT ID_EXT IOC_GUID INITIATOR SECONDS

INITIATOR is an initiator port that the target knows, 32 hexadecimal digits; it is used for peers that
misbehave only after their login. Runs all kinds in turns until the time is up and prints how often each
ran and how it ended. Any end is fine here: what matters is how the target and its good host fare."""
import collections, random, socket, struct, sys, time

where, id_ext, ioc_guid, initiator, seconds = sys.argv[1:]
host, port = where.rsplit(":", 1)
TARGET = bytes.fromhex(id_ext + ioc_guid)
KNOWN = bytes.fromhex(initiator)
rng = random.Random(20)
KEY = b"MPA ID Req Frame"


def connect():
    s = socket.create_connection((host, int(port)), timeout=5)
    s.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return s


def login(who=KNOWN, target=TARGET, iu=8260, opcode=0, fmt=6, action=1, imm=68):
    return struct.pack(">QHBBI16s16sH6x", 0, fmt, 0x80 | action, opcode, iu, who, target, imm)


def request(private, key=KEY, flags=0x10, rev=2, length=None, ird=4, ord=0):
    data = struct.pack(">HH", ird, ord) + private
    return key + struct.pack(">BBH", flags, rev, len(data) if length is None else length) + data


def send(msn, payload, queue=0, opcode=3, last=True, offset=0):
    """An untagged FPDU without CRC."""
    ulpdu = struct.pack(">BBIIII", 0x41 if last else 0x01, 0x40 | opcode, 0, queue, msn, offset) + payload
    body = struct.pack(">H", len(ulpdu)) + ulpdu
    return body + bytes(-len(body) % 4) + bytes(4)


def command(tag, cdb, fmt=0, area=b"", counts=b"\0\0", lun=0):
    return struct.pack(">BBHBB2sQ4xQB3x16s", 2, 0, 0, 0, fmt, counts, tag, lun << 48, 0, cdb.ljust(16, b"\0")) + area


def established():
    s = connect()
    s.sendall(request(login()))
    answer = b""
    while len(answer) < 76:
        got = s.recv(76 - len(answer))
        if not got:
            raise ConnectionError("refused")
        answer += got
    if answer[17] & 0x20 or answer[16] & 0x20:
        raise ConnectionError("refused")
    return s


def drain(s, limit=0.3):
    """Reads what comes until the end or the limit; whether the peer closed."""
    s.settimeout(limit)
    try:
        while s.recv(65536):
            pass
        return "closed"
    except socket.timeout:
        return "open"
    except OSError:
        return "reset"
    finally:
        s.close()


kept = collections.deque()  # half-open connections that stay


def half_open():
    s = connect()
    s.sendall(KEY[: rng.randrange(17)])
    kept.append(s)
    if len(kept) > 300:
        kept.popleft().close()
    return "kept"


def slow_start():
    s = connect()
    for b in request(login())[:30]:
        s.sendall(bytes([b]))
    kept.append(s)
    return "kept"


def garbage():
    s = connect()
    s.sendall(rng.randbytes(rng.randrange(1, 5000)))
    return drain(s)


def before(data):
    s = connect()
    s.sendall(data)
    return drain(s)


def bad_start():
    return before(rng.choice([
        request(b"", length=0xFFFF), request(b"", length=0), request(login(), rev=9), request(login(), flags=0x90),
        request(login(), flags=0xFF), request(login(), ird=0xFFFF, ord=0xFFFF), request(login(), key=b"MPA ID Rep Frame"),
        request(login()[:20]), request(login() + bytes(400)), request(bytes(508)), request(rng.randbytes(56))]))


def bad_login():
    return before(request(rng.choice([
        login(who=rng.randbytes(16)), login(target=rng.randbytes(16)), login(iu=0), login(iu=0xFFFFFFFF), login(iu=63),
        login(opcode=2), login(fmt=0), login(fmt=0xFFFF), login(imm=0xFFFF), login(imm=0), login(who=bytes(16))])))


def after(*frames):
    s = established()
    for f in frames:
        try:
            s.sendall(f)
        except OSError:
            break
    return drain(s)


def bad_stream():
    ok = send(1, command(1, b"\x12\0\0\0\x24"))
    return after(*rng.choice([
        [b"\xff\xff" + rng.randbytes(3000)], [b"\0\0" * 50], [rng.randbytes(2000)], [send(7, b"x")], [send(0, b"")],
        [send(1, b"x", queue=9)], [send(1, b"x", opcode=15)], [send(1, b"x", offset=0xFFFFFFFF)], [ok[:-3]], [ok, ok],
        [send(1, bytes(8000), last=False)] * 40,                        # a message that never ends
        [struct.pack(">HBBIQ", 14 + 64, 0xC1, 0x40, rng.getrandbits(32), rng.getrandbits(64)) + bytes(68)],  # RDMA write
        [send(1, rng.randbytes(28), queue=1, opcode=1)],                # RDMA read of what was never offered
        [send(1, rng.randbytes(20), queue=2, opcode=7)],                # Terminate
        [struct.pack(">HBBIQ", 14 + 64, 0xC1, 0x42, rng.getrandbits(32), rng.getrandbits(64)) + bytes(68)],  # read response
    ]))


def bad_command():
    read, write = b"\x28\0\0\0\0\0\0\0\x08", b"\x2a\0\0\0\0\0\0\0\x08"
    direct = struct.pack(">QII", rng.getrandbits(64), rng.getrandbits(32), rng.choice([0, 1, 4096, 0xFFFFFFFF]))
    table = lambda n, total: struct.pack(">QIII", rng.getrandbits(64), rng.getrandbits(32), n, total)
    return after(send(1, rng.choice([
        b"", b"\x02", rng.randbytes(48), bytes([rng.randrange(256)]) + bytes(63), command(1, read, 0x01), command(1, read, 0x0F),
        command(1, read, 0x01, direct), command(1, write, 0x10, direct), command(1, read, 0x02, table(0xFFFFFFF0, 0xFFFFFFFF), b"\0\xff"),
        command(1, write, 0x20, table(16, 4096) + direct, b"\x01\0"), command(1, write, 0x20, table(1 << 20, 4096), b"\0\0"),
        command(1, write, 0x30, struct.pack(">I", 0xFFFFFFFF)), command(1, write, 0x30, struct.pack(">I", 4096) + bytes(100)),
        command(1, rng.randbytes(16), 0x11, direct + direct), command(1, read, 0x01, direct, lun=0xFFFF),
        struct.pack(">BBHB3xQ4xQ2xB5xQ8x", 1, 0, 0, 0, 2, 0, rng.randrange(256), 1)])))


def too_many():
    """More commands than the credit allows, and no answer is read."""
    s = established()
    s.settimeout(1)
    try:
        for i in range(1, 3000):
            s.sendall(send(i, command(i, b"\x12\0\0\0\x24", 0x01, struct.pack(">QII", 4096, 7, 36))))
    except OSError:
        s.close()
        return "closed"
    return drain(s)


def gone():
    """Leaves in the middle of a write whose data it was asked for."""
    s = established()
    for i in range(1, 20):
        s.sendall(send(i, command(i, b"\x2a\0\0\0\0\0\0\0\x80", 0x10, struct.pack(">QII", 4096, 7, 65536))))
    s.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", rng.randrange(2), 0))
    s.close()
    return "left"


kinds = [half_open, slow_start, garbage, bad_start, bad_login, bad_stream, bad_command, too_many, gone]
weight = [8, 1, 4, 6, 6, 8, 8, 1, 4]
seen = collections.Counter()
end = time.monotonic() + float(seconds)
while time.monotonic() < end:
    kind = rng.choices(kinds, weight)[0]
    try:
        how = kind()
    except OSError as e:
        how = type(e).__name__
    seen[kind.__name__, how] += 1
for (kind, how), n in sorted(seen.items()):
    print(f"{kind:12} {how:24} {n}")
print("total", sum(seen.values()))
