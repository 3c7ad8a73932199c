//! The timeline and the closing table, for people or as lines of JSON.

use std::io::Write;

use anstyle::{AnsiColor, Style};
use fencing::clock::{Clock, SystemClock};
use serde_json::{Value, json};

use crate::scenes::{End, Scene};

#[derive(Clone, Copy)]
pub(crate) enum Tone {
    Plain,
    Pause,
    Good,
    Bad,
}

pub(crate) struct Show {
    json: bool,
    scene: &'static str,
    started: std::time::Duration,
}

impl Show {
    pub(crate) fn new(json: bool) -> Self {
        Self { json, scene: "", started: SystemClock.elapsed() }
    }

    pub(crate) fn scene(&mut self, scene: Scene, title: &str) {
        self.scene = scene.name();
        self.started = SystemClock.elapsed();
        if self.json {
            line(&json!({ "scene": self.scene, "title": title }).to_string());
        } else {
            let bold = Style::new().bold();
            line(&format!("\n{bold}{title}{bold:#}"));
        }
    }

    pub(crate) fn say(&self, who: &str, what: &str, tone: Tone) {
        let at = SystemClock.elapsed().saturating_sub(self.started);
        if self.json {
            let at_ms = u64::try_from(at.as_millis()).unwrap_or(u64::MAX);
            let event = json!({ "scene": self.scene, "at_ms": at_ms, "who": who, "what": what });
            return line(&event.to_string());
        }
        let actor = match who {
            "A" => AnsiColor::Yellow.on_default().bold(),
            "B" => AnsiColor::Cyan.on_default().bold(),
            _ => Style::new().dimmed(),
        };
        let style = match tone {
            Tone::Plain => Style::new(),
            Tone::Pause => AnsiColor::Magenta.on_default(),
            Tone::Good => AnsiColor::Green.on_default(),
            Tone::Bad => AnsiColor::Red.on_default(),
        };
        let dim = Style::new().dimmed();
        line(&format!(
            "  {dim}{:6.2} s{dim:#}  {actor}{who:<8}{actor:#}  {style}{what}{style:#}",
            at.as_secs_f64()
        ));
    }

    /// A request and the status line it got.
    pub(crate) fn answer(&self, who: &str, answer: &Value, tone: Tone) {
        let text = |key: &str| answer[key].as_str().unwrap_or("").to_owned();
        let mut said = format!(
            "{} under token {}: {} {}",
            text("method"),
            answer["token"],
            answer["status"],
            text("reason")
        );
        let body = &answer["body"];
        if let Some(quantity) = body["quantity"].as_i64() {
            said.push_str(&format!(", {quantity} in stock"));
        }
        if let Some(kind) = body["type"].as_str() {
            said.push_str(&format!(", {kind}"));
        }
        if let Some(mark) = body["last_token"].as_i64() {
            said.push_str(&format!(", mark {mark}"));
        }
        self.say(who, &said, tone);
    }

    pub(crate) fn table(&self, ends: &[End]) {
        if self.json {
            let ok = ends.iter().all(End::is_as_it_must_be);
            return line(&json!({ "ok": ok, "scenes": ends }).to_string());
        }
        let cell = |value: Option<i64>| value.map_or_else(|| "-".to_owned(), |v| v.to_string());
        line(&format!(
            "\n  {:<10} {:>7} {:>7} {:>12} {:>5}  {:<16} {}",
            "scene", "token A", "token B", "zombie write", "stock", "applied", "how it ended"
        ));
        for end in ends {
            let (colour, mark) = if end.is_as_it_must_be() {
                (AnsiColor::Green.on_default(), "as it must")
            } else {
                (AnsiColor::Red.on_default(), "NOT as it must")
            };
            line(&format!(
                "  {:<10} {:>7} {:>7} {:>12} {:>5}  {:<16} {} ({colour}{mark}{colour:#})",
                end.scene.name(),
                cell(end.token_a),
                cell(end.token_b),
                cell(end.zombie_status),
                end.stock,
                format!("{:?}", end.applied),
                end.verdict,
            ));
        }
    }
}

/// A broken pipe ends the demo's output, not the demo.
fn line(text: &str) {
    let mut out = anstream::stdout();
    let _ = writeln!(out, "{text}").and_then(|()| out.flush());
}
