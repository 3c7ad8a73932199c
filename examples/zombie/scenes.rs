//! The three scenes: what happens in each, and how it must end.

use serde::Serialize;
use serde_json::Value;

use crate::Error;
use crate::children::Process;
use crate::database::Stage;
use crate::show::{Show, Tone};

/// The story: five in stock, A takes one, B takes two.
const ITEM: i64 = 1;
const STOCK: i64 = 5;
const LEFT_BY_A: i64 = STOCK - 1;
const LEFT_BY_B: i64 = STOCK - 2;
const FLOOR: i64 = 32;
const A_DAY_MS: u64 = 24 * 60 * 60 * 1000;
/// How long B waits where it waits in vain.
const IN_VAIN_MS: u64 = 4000;

#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Scene {
    /// Lease and fence: the zombie is refused.
    BothOn,
    /// No fence: the zombie's write lands.
    FenceOff,
    /// A lease that never ends in practice: nobody is harmed, and nobody works.
    LeaseOff,
}

impl Scene {
    pub(crate) const ALL: [Self; 3] = [Self::BothOn, Self::FenceOff, Self::LeaseOff];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::BothOn => "both-on",
            Self::FenceOff => "fence-off",
            Self::LeaseOff => "lease-off",
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Self::BothOn => "lease on, fence on",
            Self::FenceOff => "lease on, fence off",
            Self::LeaseOff => "lease off (a TTL of 24 h), fence on",
        }
    }
}

/// How a scene ended. Every value is from an HTTP answer, a worker's lease or the database.
#[derive(Serialize)]
pub(crate) struct End {
    pub(crate) scene: Scene,
    pub(crate) token_a: Option<i64>,
    pub(crate) token_b: Option<i64>,
    /// The status of A's write after it woke up.
    pub(crate) zombie_status: Option<i64>,
    pub(crate) a_reports_loss: Option<bool>,
    /// What is in stock, by the database.
    pub(crate) stock: i64,
    /// The tokens of the applied writes, in their order, by the database.
    pub(crate) applied: Vec<i64>,
    pub(crate) as_it_must_be: bool,
    pub(crate) verdict: &'static str,
}

impl End {
    pub(crate) fn is_as_it_must_be(&self) -> bool {
        self.as_it_must_be
    }

    fn judge(mut self) -> Self {
        let tokens = (self.token_a, self.token_b);
        let applied = self.applied.as_slice();
        (self.as_it_must_be, self.verdict) = match self.scene {
            Scene::BothOn => (
                tokens == (Some(33), Some(34))
                    && self.zombie_status == Some(412)
                    && self.a_reports_loss == Some(true)
                    && (self.stock, applied) == (LEFT_BY_B, &[34][..]),
                "the zombie is refused, the stock is right",
            ),
            Scene::FenceOff => (
                tokens == (Some(33), Some(34))
                    && self.zombie_status == Some(204)
                    && (self.stock, applied) == (LEFT_BY_A, &[34, 33][..]),
                "the zombie's write lands, B's is lost: the stock is wrong",
            ),
            Scene::LeaseOff => (
                tokens == (Some(33), None)
                    && self.zombie_status.is_none()
                    && (self.stock, applied) == (STOCK, &[][..]),
                "nothing is wrong, and nothing moves: B waits in vain",
            ),
        };
        self
    }
}

pub(crate) async fn play(
    scene: Scene,
    stage: &Stage,
    lease_ms: u64,
    show: &Show,
) -> Result<End, Error> {
    stage.prepare(FLOOR, ITEM, STOCK).await?;
    show.say("database", &format!("item {ITEM} has {STOCK}; the floor is {FLOOR}"), Tone::Plain);

    let fence = if scene == Scene::FenceOff { "off" } else { "on" };
    let mut service = Process::start(
        &["service", "--prefix", &stage.prefix, "--fence", fence],
        &[("FENCING_DATABASE", &stage.url)],
    )?;
    let ready = service.line().await?;
    show.say("service", &ready, Tone::Plain);
    let base = ready.rsplit(' ').next().unwrap_or_default().to_owned();
    let ttl_ms = if scene == Scene::LeaseOff { A_DAY_MS } else { lease_ms };
    let wait_ms = if scene == Scene::LeaseOff { IN_VAIN_MS } else { lease_ms + 5000 };
    let worker = |name: &str| {
        let (item, ttl, wait) = (ITEM.to_string(), ttl_ms.to_string(), wait_ms.to_string());
        let args = ["--item", &item, "--ttl-ms", &ttl, "--wait-ms", &wait];
        Process::start(&[&["worker", "--name", name, "--url", &base][..], &args[..]].concat(), &[])
    };
    let (mut a, mut b) = (worker("A")?, worker("B")?);

    let token_a = acquire(&mut a, "A", show).await?;
    read(&mut a, "A", show).await?;
    let held = a.ask("check").await?["held"] == true;
    show.say("A", &format!("checks its lease: held is {held}; about to write"), Tone::Plain);
    a.stop().await?;
    show.say("A", "SIGSTOP: paused between its check and its write", Tone::Pause);

    let patience = if scene == Scene::LeaseOff {
        format!("asks for the lock, waits {IN_VAIN_MS} ms at most")
    } else {
        format!("asks for the lock; A's lease of {lease_ms} ms runs out")
    };
    show.say("B", &patience, Tone::Plain);
    let token_b = acquire(&mut b, "B", show).await?;

    let (mut zombie_status, mut a_reports_loss) = (None, None);
    if token_b.is_some() {
        read(&mut b, "B", show).await?;
        let written = b.ask(&format!("write {LEFT_BY_B}")).await?;
        show.answer("B", &written, Tone::Good);

        a.tell(&format!("write {LEFT_BY_A}")).await?;
        a.resume()?;
        show.say("A", "SIGCONT: wakes up and writes what it had in mind", Tone::Pause);
        let written: Value = serde_json::from_str(&a.line().await?)?;
        let refused = written["status"] == 412;
        show.answer("A", &written, if refused { Tone::Good } else { Tone::Bad });
        zombie_status = written["status"].as_i64();

        let lost = a.ask("lost").await?;
        a_reports_loss = lost["lost"].as_bool();
        show.say("A", &format!("its lease reports: lost is {}", lost["lost"]), Tone::Plain);
        let released = b.ask("release").await?;
        show.say(
            "B",
            &format!("gives the lock back: {}", text(&released["released"])),
            Tone::Plain,
        );
    }

    let (stock, applied) = stage.look(ITEM).await?;
    let end = End {
        scene,
        token_a,
        token_b,
        zombie_status,
        a_reports_loss,
        stock,
        applied,
        as_it_must_be: false,
        verdict: "",
    }
    .judge();
    let tone = if scene == Scene::BothOn && end.as_it_must_be { Tone::Good } else { Tone::Bad };
    show.say(
        "database",
        &format!("{stock} in stock, writes applied under {:?}: {}", end.applied, end.verdict),
        tone,
    );
    Ok(end)
}

async fn acquire(worker: &mut Process, name: &str, show: &Show) -> Result<Option<i64>, Error> {
    let answer = worker.ask("acquire").await?;
    let token = answer["token"].as_i64();
    match token {
        Some(token) => show.say(name, &format!("holds the lock, token {token}"), Tone::Plain),
        None => show.say(name, "does not get the lock: acquired is false", Tone::Bad),
    }
    Ok(token)
}

async fn read(worker: &mut Process, name: &str, show: &Show) -> Result<(), Error> {
    let answer = worker.ask("read").await?;
    show.answer(name, &answer, Tone::Plain);
    Ok(())
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or("?")
}
