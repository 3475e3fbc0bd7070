//! A PostgreSQL server of a scenario's own, on a directory of an attached disk.

use super::ScenarioError;
use super::attached::run;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where Debian puts the versions.
const VERSIONS: &str = "/usr/lib/postgresql";
/// Whom the server belongs to: it refuses to run as root.
const USER: &str = "postgres";

/// PostgreSQL's programs, of the newest version that is there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Programs {
    bin: PathBuf,
    /// Its number.
    pub(super) version: String,
}

impl Programs {
    /// Looks for them.
    ///
    /// # Errors
    /// What is missing and how to get it.
    pub(super) fn find() -> Result<Programs, String> {
        Programs::find_in(Path::new(VERSIONS), &read("/etc/passwd"))
    }

    fn find_in(versions: &Path, users: &str) -> Result<Programs, String> {
        let number = |p: &Path| p.file_name()?.to_str()?.parse::<u32>().ok();
        let found = std::fs::read_dir(versions).into_iter().flatten().flatten();
        let all = found.filter_map(|e| Some((number(&e.path())?, e.path().join("bin"))));
        let complete = |bin: &Path| {
            ["initdb", "postgres", "psql", "pgbench", "pg_ctl"]
                .iter()
                .all(|p| bin.join(p).is_file())
        };
        let newest = all.filter(|(_, bin)| complete(bin)).max();
        let Some((version, bin)) = newest else {
            let why = "there is no PostgreSQL with initdb, psql and pgbench in /usr/lib/postgresql (Debian: apt-get install \
                       postgresql postgresql-client)";
            return Err(why.into());
        };
        if !users.lines().any(|l| l.split(':').next() == Some(USER)) {
            let why = format!(
                "there is no user `{USER}` for the server (Debian: apt-get install postgresql)"
            );
            return Err(why);
        }
        Ok(Programs { bin, version: version.to_string() })
    }
}

fn read(path: &str) -> String {
    // What cannot be read has no such user in it.
    std::fs::read_to_string(path).unwrap_or_default()
}

/// What psql printed, and the time behind it in milliseconds.
fn time_of(said: &str) -> Option<(&str, f64)> {
    let (answer, last) = said.rsplit_once('\n').unwrap_or(("", said));
    let ms = last.strip_prefix("Time: ")?.split_whitespace().next()?.parse().ok()?;
    Some((answer, ms))
}

/// A server; its data are in `pg` of the directory that it was made in, by which whoever owns that ends it.
#[derive(Debug, Clone)]
pub(super) struct Server {
    programs: Programs,
    /// The mounted disk.
    at: PathBuf,
    /// Of the scenario: sockets and logs are in it, not on the disk.
    aside: PathBuf,
}

impl Server {
    /// One that is yet to have a cluster, with the directories that the server's user needs.
    fn at(programs: &Programs, at: &Path, aside: &Path) -> Result<Server, ScenarioError> {
        let system = |e| ScenarioError::System(aside.display().to_string(), e);
        std::fs::create_dir_all(aside).map_err(system)?;
        for dir in [aside, at] {
            run(Command::new("chown").arg(USER).arg(dir))?;
        }
        std::fs::set_permissions(aside, std::fs::Permissions::from_mode(0o755)).map_err(system)?;
        Ok(Server { programs: programs.clone(), at: at.into(), aside: aside.into() })
    }

    /// Makes a database cluster on a mounted disk and starts a server on it.
    pub(super) fn start(
        programs: &Programs,
        at: &Path,
        aside: &Path,
        settings: &str,
    ) -> Result<Server, ScenarioError> {
        let s = Server::at(programs, at, aside)?;
        run(s.program("initdb").arg("-D").arg(s.data()).args([
            "--auth=trust",
            "--encoding=UTF8",
            "--locale=C",
        ]))?;
        s.up(settings)?;
        Ok(s)
    }

    /// Copies the cluster of a server that is down to another mounted disk and starts a server on it: the same pages, with the
    /// same statistics, so the same plans.
    pub(super) fn start_copy(
        &self,
        at: &Path,
        aside: &Path,
        settings: &str,
    ) -> Result<Server, ScenarioError> {
        let s = Server::at(&self.programs, at, aside)?;
        run(Command::new("cp").arg("-a").arg(self.data()).arg(at))?;
        s.up(settings)?;
        Ok(s)
    }

    /// Starts the server.
    pub(super) fn up(&self, settings: &str) -> Result<(), ScenarioError> {
        let data = self.data();
        let file = data.join("postgresql.auto.conf");
        let text = format!(
            "listen_addresses = ''\nunix_socket_directories = '{}'\n{settings}",
            self.aside.display()
        );
        std::fs::write(&file, text)
            .map_err(|e| ScenarioError::System(file.display().to_string(), e))?;
        let mut c = self.program("pg_ctl");
        c.arg("-D").arg(&data).arg("-l").arg(self.aside.join("postgres.log"));
        run(c.args(["-w", "-t", "60", "start"])).map(drop)
    }

    /// Where its files are.
    pub(super) fn data(&self) -> PathBuf {
        self.at.join("pg")
    }

    /// A program of PostgreSQL's as its user.
    pub(super) fn program(&self, name: &str) -> Command {
        let mut c = Command::new("runuser");
        c.args(["-u", USER, "--"]).arg(self.programs.bin.join(name)).current_dir(&self.aside);
        c
    }

    /// Runs statements; gives what they print, fields divided by `|`.
    pub(super) fn sql(&self, text: &str) -> Result<String, ScenarioError> {
        let mut c = self.program("psql");
        c.args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-h"])
            .arg(&self.aside)
            .args(["-c", text]);
        run(&mut c)
    }

    /// The same with the time that it took the server and the way to it, in milliseconds.
    pub(super) fn timed(&self, text: &str) -> Result<(String, f64), ScenarioError> {
        let mut c = self.program("psql");
        c.args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-h"]).arg(&self.aside).args([
            "-c",
            "\\timing on",
            "-c",
            text,
        ]);
        let said = run(&mut c)?;
        let found = time_of(&said).map(|(answer, ms)| (answer.to_owned(), ms));
        found.ok_or_else(|| ScenarioError::Io(format!("psql told no time: {said}")))
    }

    /// Runs the statements of a file.
    pub(super) fn file(&self, name: &str, text: &str) -> Result<(), ScenarioError> {
        let path = self.script(name, text)?;
        let mut c = self.program("psql");
        c.args(["-qAtX", "-v", "ON_ERROR_STOP=1", "-d", "postgres", "-h"])
            .arg(&self.aside)
            .arg("-f")
            .arg(path);
        run(&mut c).map(drop)
    }

    /// A file that its programs can read.
    pub(super) fn script(&self, name: &str, text: &str) -> Result<PathBuf, ScenarioError> {
        let path = self.aside.join(name);
        std::fs::write(&path, text)
            .map_err(|e| ScenarioError::System(path.display().to_string(), e))?;
        Ok(path)
    }

    /// Where its socket is.
    pub(super) fn host(&self) -> &Path {
        &self.aside
    }

    /// Ends it in order.
    pub(super) fn stop(&self) -> Result<(), ScenarioError> {
        let data = self.data();
        run(self
            .program("pg_ctl")
            .arg("-D")
            .arg(data)
            .args(["-m", "fast", "-w", "-t", "60", "stop"]))
        .map(drop)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_taken_from_what_psql_says() {
        let long = "A|1\nB|2\nTime: 3536.685 ms (00:03.537)";
        assert_eq!(time_of(long), Some(("A|1\nB|2", 3536.685)));
        assert_eq!(time_of("Time: 0.5 ms"), Some(("", 0.5)));
        assert_eq!(time_of("A|1"), None);
    }

    #[test]
    fn the_newest_whole_version_is_taken_and_what_lacks_is_named() {
        let dir = std::env::temp_dir().join(format!("weir-pg-{}", std::process::id()));
        let said = Programs::find_in(&dir, "").unwrap_err();
        assert!(said.contains("apt-get install postgresql"), "{said}");
        for (version, programs) in [("9", 5), ("15", 5), ("16", 4)] {
            let bin = dir.join(version).join("bin");
            std::fs::create_dir_all(&bin).unwrap();
            for p in &["initdb", "postgres", "psql", "pg_ctl", "pgbench"][..programs] {
                std::fs::write(bin.join(p), "").unwrap();
            }
        }
        assert!(Programs::find_in(&dir, "root:x:0:0").unwrap_err().contains("user `postgres`"));
        let p = Programs::find_in(&dir, "root:x:0:0\npostgres:x:101:104::/:/bin/sh").unwrap();
        assert_eq!((p.version.as_str(), p.bin), ("15", dir.join("15/bin")));
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
