"""Builds what a kernel-lab VM boots, from Debian packages: a kernel, its modules, a root folder.

Nothing is installed on the host. The host's apt downloads into the cache and dpkg-deb unpacks
there, with no root rights and no install scripts run."""
import ctypes, fcntl, hashlib, lzma, os, re, shlex, shutil, subprocess, sys, tempfile, time
from pathlib import Path

HERE = Path(__file__).resolve().parent
ENV = os.environ.get
CACHE = Path(ENV("KERNEL_LAB_CACHE") or Path.home() / ".cache" / "kernel-lab").resolve()
# The first of these that apt offers; a metapackage stands for the kernel it depends on.
KERNELS = (ENV("KERNEL_LAB_KERNEL") or "linux-image-6.12-amd64 linux-image-amd64").split()
# What the guest's root holds, besides all that these depend on.
PACKAGES = """bash busybox-static coreutils diffutils dmsetup e2fsprogs ethtool findutils fio grep
 iproute2 ibverbs-providers ibverbs-utils kmod libiscsi-bin mawk nbd-client nbd-server nvme-cli open-iscsi
 multipath-tools perftest procps python3 rdma-core rdmacm-utils sed sg3-utils strace tcpdump
 util-linux xfsprogs
 """.split() + (ENV("KERNEL_LAB_PACKAGES") or "").split()
# The guest's modules, besides those they need. Names that the kernel lacks are only reported.
MODULES = """9p 9pnet_virtio overlay virtio_rng dummy veth bridge sch_netem inet_diag tcp_diag tls configfs
 rdma_rxe siw rdma_cm rdma_ucm ib_uverbs ib_umad iw_cm ib_srp ib_srpt ib_iser ib_isert
 scsi_transport_srp sd_mod sg scsi_debug scsi_dh_alua scsi_dh_rdac iscsi_tcp iscsi_target_mod
 target_core_mod target_core_file target_core_iblock target_core_user tcm_loop
 nvme nvme_tcp nvme_rdma nvme_loop nvmet nvmet_tcp nvmet_rdma nbd ublk_drv null_blk brd loop
 dm_mod dm_multipath dm_round_robin dm_service_time dm_flakey ext4 xfs
 crc32c_generic crc32c_intel crc32_generic crc32_pclmul crct10dif_pclmul
 """.split() + (ENV("KERNEL_LAB_MODULES") or "").split()
BOOT_MODULES = "netfs 9pnet 9pnet_virtio 9p overlay".split()  # in the order the initramfs loads them
SIW_CC = "gcc-12"
UNPACK_SKIP = "doc man locale info perl perl5 lintian bash-completion zoneinfo".split()


def say(text):
    print(f"kernel-lab: {text}", file=sys.stderr, flush=True)


def out(*cmd, **kw):
    return subprocess.run([str(c) for c in cmd], check=True, text=True, stdout=subprocess.PIPE, **kw).stdout


def loader(top, program, name=None):
    """The command that runs a program unpacked under top, with the C library unpacked beside it."""
    lib = top / "usr/lib/x86_64-linux-gnu"
    return [lib / "ld-linux-x86-64.so.2", "--argv0", name or program, "--library-path", lib,
            top / "usr/bin" / program]


def host_qemu():
    """The host's QEMU if it is 8.1 or newer. The multi-threaded TCG of older ones now and then runs
    stale code after the guest's kernel patched itself, and the guest dies of 'Oops: int3'."""
    path = shutil.which(ENV("KERNEL_LAB_QEMU") or "qemu-system-x86_64")
    version = path and re.search(r"version (\d+)\.(\d+)", out(path, "--version"))
    if version and (ENV("KERNEL_LAB_QEMU") or (int(version[1]), int(version[2])) >= (8, 1)):
        return path


class Apt:
    """The host's apt with its Debian sources, but with lists and archives of its own, and with an
    empty package status: a download then brings all that a package depends on."""

    def __init__(self, top, backports):
        for d in ("state/lists/partial", "archives/partial"):
            (top / d).mkdir(parents=True)
        (top / "status").touch()
        release = dict(l.rstrip().split("=", 1) for l in open("/etc/os-release") if "=" in l)
        self.code = release.get("VERSION_CODENAME", "").strip('"')
        rows = [l.split("|") for l in out("apt-get", "indextargets", "--format",
                "$(REPO_URI)|$(RELEASE)|$(COMPONENT)", "Identifier: Packages").splitlines()]
        rows = {(u, r) for u, r, c in rows if c == "main" and r.startswith(self.code)}
        if backports:
            rows |= {(u, f"{self.code}-backports") for u, r in rows if r == self.code}
        key = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
        (top / "lab.sources").write_text("\n".join(
            f"Types: deb\nURIs: {u}\nSuites: {r}\nComponents: main\n" + f"Signed-By: {key}\n" * key.exists()
            for u, r in sorted(rows)))
        conf = top / "apt.conf"  # read after the host's own configuration
        conf.write_text("#clear APT::Update::Post-Invoke;\n" + "".join(f'{k} "{v}";\n' for k, v in {
            "Dir::Etc::sourcelist": top / "lab.sources", "Dir::Etc::sourceparts": "/dev/null",
            "Dir::State": top / "state", "Dir::State::status": top / "status", "Dir::Cache": top,
            "Acquire::Languages": "none", "Acquire::Retries": 3, "APT::Sandbox::User": "root",
            "Debug::NoLocking": 1}.items()))
        self.top, self.opts = top, ["-c", conf]
        out("apt-get", *self.opts, "-qq", "update")

    def show(self, name):
        text = subprocess.run(["apt-cache", *self.opts, "show", "--no-all-versions", name],
                              text=True, capture_output=True).stdout
        return dict(l.split(": ", 1) for l in text.splitlines() if re.match(r"\w[\w-]*: ", l))

    def kernel(self, name):
        """(package, version) of a kernel image, or None if apt does not offer it."""
        fields = self.show(name)
        real = re.match(r"linux-image-\d[\w.+-]*", fields.get("Depends", ""))
        return self.kernel(real[0]) if real else fields and (name, fields["Version"])

    def unpack(self, deb, dest, *only):
        tar = subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE)
        skip = [f"--exclude=./usr/share/{s}" for s in UNPACK_SKIP]
        out("tar", "-x", "-C", dest, "--keep-directory-symlink", "--no-same-owner", *skip, *only, stdin=tar.stdout)
        if tar.wait():
            raise subprocess.CalledProcessError(tar.returncode, tar.args)

    def download(self, dest, *names):
        out("apt-get", *self.opts, "-qq", "download", *names, cwd=dest)

    def root(self, dest, packages, suite=None):
        """Unpack the packages and all that they depend on into the new folder dest."""
        out("apt-get", *self.opts, *(["-t", suite] if suite else []), "-qq", "-y", "--no-install-recommends",
            "--download-only", "install", *packages)
        for d in ("bin", "sbin", "lib", "lib64"):
            (dest / "usr" / d).mkdir(parents=True)
            (dest / d).symlink_to(f"usr/{d}")
        for deb in (self.top / "archives").glob("*.deb"):
            self.unpack(deb, dest)
            deb.unlink()


def has_library(name):
    try:
        ctypes.CDLL(name)
    except OSError:
        return False
    return True


def host_lacks():
    """The host's missing Debian packages: (those without which nothing can be built, those for siw)."""
    lacks = lambda need: [p for p, t in need.items() if not (has_library(t) if ".so" in t else shutil.which(t))]
    need = {"apt": "apt-cache", "dpkg": "dpkg-deb", "tar": "tar", "xz-utils": "xz"}
    # The kernel's headers name their compiler, gcc-12 in Debian 12; build_siw finds out for certain.
    return lacks(need), lacks({SIW_CC: SIW_CC, "make": "make", "binutils": "strip", "libelf1": "libelf.so.1"})


def prepare_host(install):
    """Says what the host lacks for a build, or installs it. Stops here if the build cannot succeed."""
    must, siw = host_lacks()
    if not must + siw:
        return
    command = ["apt-get", "install", "-y", "--no-install-recommends", *must, *siw]
    if install:
        say("installing " + " ".join(must + siw))
        if os.geteuid():
            command.insert(0, "sudo")
        subprocess.run(["env", "DEBIAN_FRONTEND=noninteractive", *command], check=True, stdout=sys.stderr)
        must, siw = host_lacks()
    if must + siw:
        say(f"this host lacks packages{'' if must else ' for siw'}; install them: {shlex.join(command)}")
    if must:
        sys.exit(125)


def build_siw(apt, work, base):
    """Debian's kernels come without the software iWARP driver: build it from Debian's source of the
    same kernel, against Debian's headers for it. Returns the module, or None after saying why."""
    source = "linux-source-" + re.match(r"\d+\.\d+", base)[0]
    need = re.findall(r"linux-(?:headers|kbuild)-\d[\w.+-]*", apt.show(f"linux-headers-{base}")["Depends"])
    apt.download(work, f"linux-headers-{base}", *need, source)
    for deb in work.glob("*.deb"):
        apt.unpack(deb, work)
    siw = f"{source}/drivers/infiniband/sw/siw"
    out("tar", "-xJf", work / f"usr/src/{source}.tar.xz", "-C", work, siw)
    headers = work / f"usr/src/linux-headers-{base}"
    cc = re.search(r"\)(gcc-\d+)", (headers / ".kernelvariables").read_text())[1]
    missing = [t for t in (cc, "make", "strip") if not shutil.which(t)]
    if missing:
        return say(f"siw left out: the host lacks {', '.join(missing)}")
    makefile = headers / "Makefile"  # names its other half by an absolute path
    makefile.write_text(makefile.read_text().replace("/usr/src/", f"{work}/usr/src/"))
    made = subprocess.run(["make", "-C", headers, f"M={work / siw}", "CONFIG_RDMA_SIW=m",
                           "CONFIG_DEBUG_INFO_BTF_MODULES=", f"-j{os.cpu_count()}", "modules"],
                          text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if made.returncode:
        return say("siw left out, it does not build:\n" + made.stdout[-2000:])
    out("strip", "--strip-debug", work / siw / "siw.ko")
    return work / siw / "siw.ko"


def install_modules(tree, root, siw):
    """Copy the wanted modules and those they need into the guest's root, uncompressed for speed."""
    version = next((tree / "lib/modules").iterdir()).name
    src, dst = tree / "lib/modules" / version, root / "usr/lib/modules" / version
    norm = lambda path: Path(path).name.split(".ko")[0].replace("-", "_")
    have = {norm(p): p for p in [*src.rglob("*.ko*"), *([siw] if siw else [])]}
    builtin = {norm(l) for l in (src / "modules.builtin").read_text().split()}
    missing = [m for m in MODULES if m not in have and m not in builtin]
    if missing:
        say("this kernel lacks: " + " ".join(missing))
    (dst / "kernel").mkdir(parents=True)
    todo, done = list(MODULES), set()
    while todo:
        name = todo.pop()
        if name in done or name not in have:
            continue
        done.add(name)
        data = have[name].read_bytes()
        if have[name].suffix == ".xz":
            data = lzma.decompress(data)
        (dst / "kernel" / f"{name}.ko").write_bytes(data)
        todo += [norm(d) for d in re.search(rb"\0depends=([^\0]*)\0", data)[1].decode().split(",") if d]
    for f in src.glob("modules.builtin*"):
        shutil.copy(f, dst)
    (dst / "modules.order").touch()
    out(*loader(root, "kmod", "depmod"), "-b", root / "usr", "-F", next((tree / "boot").glob("System.map-*")), version)
    return dst / "kernel"


def finish_root(root):
    """Make what install scripts would have made, as far as the lab needs it."""
    for applet in out(root / "usr/bin/busybox", "--list").split():
        if not any(os.path.lexists(root / "usr" / d / applet) for d in ("bin", "sbin")):
            (root / "usr/bin" / applet).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534::/:/bin/false\n")
    (root / "etc/group").write_text("root:x:0:\ntty:x:5:\ndisk:x:6:\nnogroup:x:65534:\n")
    (root / "etc/hosts").write_text("127.0.0.1 localhost kernel-lab\n")


def make_initrd(tmp, root, modules):
    ird = tmp / "initrd.d"
    for d in ("bin", "modules"):
        (ird / d).mkdir(parents=True)
    shutil.copy(root / "usr/bin/busybox", ird / "bin")
    shutil.copy(HERE / "initrd-init", ird / "init")
    (ird / "init").chmod(0o755)
    for i, m in enumerate(BOOT_MODULES):
        if (modules / f"{m}.ko").exists():
            shutil.copy(modules / f"{m}.ko", ird / "modules" / f"{i}.ko")
    names = "\n".join(str(p.relative_to(ird)) for p in sorted(ird.rglob("*")))
    with open(tmp / "initrd", "wb") as f:
        subprocess.run([root / "usr/bin/busybox", "cpio", "-o", "-H", "newc"], input=names.encode(),
                       stdout=f, stderr=subprocess.DEVNULL, cwd=ird, check=True)


def fill(tmp):
    apt = Apt(tmp / "apt", backports=host_qemu() is None)
    kernel, version = next(filter(None, map(apt.kernel, KERNELS)))
    say(f"building from {kernel} {version}")
    root, tree, siw = tmp / "root", tmp / "tree", tmp / "siw"
    for d in (root, tree, siw):
        d.mkdir()
    apt.root(root, PACKAGES)
    apt.download(tmp, kernel)
    apt.unpack(next(tmp.glob("linux-image-*.deb")), tree)
    ko = build_siw(apt, siw, kernel.removeprefix("linux-image-"))
    modules = install_modules(tree, root, ko)
    finish_root(root)
    make_initrd(tmp, root, modules)
    shutil.copy(next((tree / "boot").glob("vmlinuz-*")), tmp / "vmlinuz")
    if host_qemu() is None:
        apt.root(tmp / "qemu", ["qemu-system-x86"], f"{apt.code}-backports")
    (tmp / "versions").write_text(f"{kernel} {version}\nsiw {'built' if ko else 'missing'}\n")
    for d in (tree, siw, tmp / "initrd.d", tmp / "apt", *tmp.glob("*.deb")):
        shutil.rmtree(d) if d.is_dir() else d.unlink()


def build(force=False, install=False):
    """The folder of the cache that holds this configuration's image, built if it is not there. With
    install, what the host lacks for that is installed first."""
    parts = [(HERE / f).read_bytes() for f in ("image.py", "initrd-init")]
    parts.append(repr([KERNELS, PACKAGES, MODULES, host_qemu() is None]).encode())
    lab, start = CACHE / ("image-" + hashlib.sha256(b"".join(parts)).hexdigest()[:12]), time.monotonic()
    CACHE.mkdir(parents=True, exist_ok=True)
    with open(CACHE / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # one build at a time; those who waited find it done
        if lab.exists() and not force:
            return lab
        prepare_host(install)
        tmp = Path(tempfile.mkdtemp(prefix="build-", dir=CACHE))
        try:
            fill(tmp)
            shutil.rmtree(lab, ignore_errors=True)
            tmp.chmod(0o755)
            tmp.rename(lab)
        except subprocess.CalledProcessError as e:
            say(f"the build failed with status {e.returncode}: {shlex.join(map(str, e.cmd))[-300:]}")
            sys.exit(125)
        finally:
            shutil.rmtree(tmp, ignore_errors=True)
    say(f"image built in {time.monotonic() - start:.0f} s")
    return lab
