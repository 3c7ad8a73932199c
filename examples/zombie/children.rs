//! The processes of the demo: started from this very program, stopped and continued by signals, and
//! killed when the demo ends, however it ends.

use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::Error;

/// No answer of a child takes longer, unless it waits for a lock.
const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    /// What others may not see on a command line goes into its environment.
    pub(crate) fn start(args: &[&str], environment: &[(&str, &str)]) -> Result<Self, Error> {
        let mut child = Command::new(std::env::current_exe()?)
            .args(args)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (Some(input), Some(output)) = (child.stdin.take(), child.stdout.take()) else {
            return Err("a child has no pipes".into());
        };
        Ok(Self { child, input, output: BufReader::new(output) })
    }

    /// The next line it prints.
    pub(crate) async fn line(&mut self) -> Result<String, Error> {
        let mut line = String::new();
        match timeout(PATIENCE, self.output.read_line(&mut line)).await {
            Ok(Ok(read)) if read > 0 => Ok(line.trim_end().to_owned()),
            Ok(Ok(_)) => Err("a process of the demo ended early".into()),
            Ok(Err(error)) => Err(error.into()),
            Err(_) => Err("a process of the demo does not answer".into()),
        }
    }

    /// Hands it a command. It reads it once it runs.
    pub(crate) async fn tell(&mut self, command: &str) -> Result<(), Error> {
        self.input.write_all(format!("{command}\n").as_bytes()).await?;
        Ok(self.input.flush().await?)
    }

    pub(crate) async fn ask(&mut self, command: &str) -> Result<Value, Error> {
        self.tell(command).await?;
        Ok(serde_json::from_str(&self.line().await?)?)
    }

    pub(crate) fn pid(&self) -> Result<Pid, Error> {
        let pid = self.child.id().and_then(|pid| Pid::from_raw(pid.cast_signed()));
        pid.ok_or_else(|| "a process of the demo has ended".into())
    }

    /// Stops it as a debugger or a suspended machine would, and waits until it stands.
    pub(crate) async fn stop(&self) -> Result<(), Error> {
        let pid = self.pid()?;
        kill_process(pid, Signal::STOP)?;
        let stopped =
            tokio::task::spawn_blocking(move || waitpid(Some(pid), WaitOptions::UNTRACED));
        match timeout(PATIENCE, stopped).await?? {
            Ok(Some((_, status))) if status.stopped() => Ok(()),
            other => Err(format!("the worker did not stop: {other:?}").into()),
        }
    }

    pub(crate) fn resume(&self) -> Result<(), Error> {
        Ok(kill_process(self.pid()?, Signal::CONT)?)
    }
}
