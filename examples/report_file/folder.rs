//! Reports in the files of one folder, each replaced as a whole.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use fencing::Claim;
use serde::{Deserialize, Serialize};

/// A folder that this process owns.
pub(crate) struct Folder {
    path: PathBuf,
    temporary: AtomicU64,
    /// Locked for as long as it is open; the system lets go of it when the process ends, however.
    _lock: File,
}

/// A report, and the claim it was produced under.
pub(crate) struct Report {
    pub(crate) claim: Claim,
    pub(crate) content: Vec<u8>,
}

/// The first line of the file of a report. In the same file, so that one rename replaces both.
#[derive(Serialize, Deserialize)]
struct Head {
    /// What it is, and the token of its producer.
    producer: Claim,
    /// Of the content, to tell a file that was cut off by something else.
    length: usize,
}

/// Why a report is not there. What it replaces is.
#[derive(Debug)]
pub(crate) enum NotPublished {
    /// It was called off before the rename.
    CalledOff,
    /// It failed before the rename.
    Failed(io::Error),
    /// The rename was made, and it is not known whether it outlives a crash of the machine.
    Unknown(io::Error),
}

const ENDING: &str = "report";
const TEMPORARY: &str = "tmp";

impl Folder {
    /// Takes the folder, made when missing, once no other process has it.
    pub(crate) fn own(path: &Path) -> Result<Self, String> {
        let failed = |error| format!("cannot take the folder: {error}, path=`{}`", path.display());
        fs::create_dir_all(path).map_err(failed)?;
        let lock = path.join("lock");
        let lock = File::options().create(true).append(true).open(lock).map_err(failed)?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                eprintln!("waiting for another process to leave the folder");
                lock.lock().map_err(failed)?;
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let folder = Self { path: path.to_owned(), temporary: AtomicU64::new(0), _lock: lock };
        // What a process that was killed had not finished. Nobody was told that it was.
        for file in folder.files(TEMPORARY).map_err(failed)? {
            fs::remove_file(file).map_err(failed)?;
        }
        Ok(folder)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Replaces a report, or leaves it as it is. `go_on` is asked when all is ready for the rename.
    ///
    /// Holders of different tokens must not be in here at the same time: that is the gate's part.
    pub(crate) fn publish(
        &self,
        name: &str,
        claim: &Claim,
        content: &[u8],
        go_on: impl FnOnce() -> bool,
    ) -> Result<(), NotPublished> {
        let number = self.temporary.fetch_add(1, Ordering::Relaxed);
        let temporary = self.path.join(format!("{name}.{number}.{TEMPORARY}"));
        let published = self.report_path(name);
        let ready = write_and_verify(&temporary, claim, content);
        let renamed = match ready {
            Ok(()) if go_on() => fs::rename(&temporary, published),
            Ok(()) => {
                let _ = fs::remove_file(&temporary);
                return Err(NotPublished::CalledOff);
            }
            Err(error) => Err(error),
        };
        renamed.map_err(|error| {
            let _ = fs::remove_file(&temporary);
            NotPublished::Failed(error)
        })?;
        // The name is in the folder, so the folder has to reach the disk as well.
        File::open(&self.path).and_then(|folder| folder.sync_all()).map_err(NotPublished::Unknown)
    }

    /// A report as it was published, `None` when there is none.
    pub(crate) fn read(&self, name: &str) -> Result<Option<Report>, String> {
        let path = self.report_path(name);
        let failed = |error: &dyn std::fmt::Display| {
            format!("cannot read the report: {error}, path=`{}`", path.display())
        };
        let file = match fs::read(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(&error)),
        };
        let end = file.iter().position(|byte| *byte == b'\n');
        let (head, content) = file.split_at(end.ok_or_else(|| failed(&"it has no head"))?);
        let head: Head = serde_json::from_slice(head).map_err(|error| failed(&error))?;
        let content = content[1..].to_vec();
        if content.len() != head.length {
            return Err(failed(&"it is not as long as its head says"));
        }
        Ok(Some(Report { claim: head.producer, content }))
    }

    /// The names of the reports there are.
    pub(crate) fn names(&self) -> io::Result<Vec<String>> {
        let stem = |path: &PathBuf| Some(path.file_stem()?.to_str()?.to_owned());
        Ok(self.files(ENDING)?.iter().filter_map(stem).collect())
    }

    fn files(&self, ending: &str) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_some_and(|extension| extension == ending) {
                found.push(path);
            }
        }
        Ok(found)
    }

    fn report_path(&self, name: &str) -> PathBuf {
        self.path.join(format!("{name}.{ENDING}"))
    }
}

fn write_and_verify(path: &Path, claim: &Claim, content: &[u8]) -> io::Result<()> {
    let head = Head { producer: claim.clone(), length: content.len() };
    let mut whole = serde_json::to_vec(&head)?;
    whole.push(b'\n');
    whole.extend_from_slice(content);
    let mut file = File::create_new(path)?;
    file.write_all(&whole)?;
    file.sync_all()?;
    drop(file);
    let mut back = Vec::with_capacity(whole.len());
    File::open(path)?.read_to_end(&mut back)?;
    if back == whole { Ok(()) } else { Err(io::Error::other("what was written was not read back")) }
}
