//! `kill -9` in the middle of the work.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

use serde_json::json;

use crate::process::{BOUND, Server, now, secret, try_request, try_take};

const ROUNDS: usize = 5;
const CLIENTS: usize = 4;

/// I2 and I4 over crashes: what was answered stays granted, and no token is granted twice.
#[test]
fn i2_i4_a_kill_loses_no_answered_grant_and_repeats_no_token() {
    let directory = tempfile::tempdir().unwrap();
    // Tokens that were answered, by resource.
    let answered: Arc<Mutex<BTreeMap<String, Vec<i64>>>> = Arc::default();
    for round in 0..ROUNDS {
        let server = Server::start(directory.path());
        // From the rounds before.
        for (resource, tokens) in &*answered.lock().unwrap() {
            let last = *tokens.last().unwrap();
            let known = server.get(&format!("/locks/{resource}/token")).json["token"].clone();
            assert!(known.as_i64().unwrap() >= last, "{resource}: {known} after {last}");
        }
        for before in 0..round {
            let held = server.get(&format!("/locks/held-{before}"));
            assert_eq!((held.status, &held.json["token"]), (200, &json!(1)), "round {before}");
            let owner = format!("holder-{before}");
            let again = server.take(&format!("held-{before}"), &owner, 3_600_000);
            assert_eq!(again.granted_token(), 1);
        }

        let stop = Arc::new(AtomicBool::new(false));
        let done = Arc::new(AtomicUsize::new(0));
        let clients: Vec<_> = (0..CLIENTS)
            .map(|client| {
                let (address, stop, done) =
                    (server.address.clone(), Arc::clone(&stop), Arc::clone(&done));
                let answered = Arc::clone(&answered);
                thread::spawn(move || work(round, client, &address, &stop, &done, &answered))
            })
            .collect();
        let began = now();
        while done.load(Ordering::SeqCst) < 40 {
            assert!(began.elapsed() < BOUND, "no work gets done");
            thread::yield_now();
        }
        // Answered in the very midst of it, and then the end.
        server
            .take(&format!("held-{round}"), &format!("holder-{round}"), 3_600_000)
            .granted_token();
        server.signal(rustix::process::Signal::KILL);
        let (code, _, _) = server.end();
        assert_eq!(code, None, "killed");
        stop.store(true, Ordering::SeqCst);
        for client in clients {
            client.join().unwrap();
        }
    }
    let answered = answered.lock().unwrap();
    assert!(!answered.is_empty());
    for (resource, tokens) in &*answered {
        // One client at a time works on a resource and asks again only after its answer, so the
        // order of answers is the order of grants.
        assert!(tokens.is_sorted_by(|a, b| a < b), "{resource}: {tokens:?}");
    }
}

/// Acquires and releases, noting each grant that was answered, until the server is gone.
fn work(
    round: usize,
    client: usize,
    address: &str,
    stop: &AtomicBool,
    done: &AtomicUsize,
    answered: &Mutex<BTreeMap<String, Vec<i64>>>,
) {
    let resource = format!("job-{client}");
    for n in 0.. {
        if stop.load(Ordering::SeqCst) {
            return;
        }
        let owner = format!("{round}-{client}-{n}");
        // An unanswered grant of the round before keeps the lock for a second at most.
        let Ok(answer) = try_take(address, &resource, &owner, 1000) else { return };
        if answer.json["acquired"] != true {
            continue;
        }
        let token = answer.granted_token();
        answered.lock().unwrap().entry(resource.clone()).or_default().push(token);
        done.fetch_add(1, Ordering::SeqCst);
        let release = format!(
            "DELETE /locks/{resource} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\
             x-lock-owner-token: {}\r\n\r\n",
            secret(&owner)
        );
        if try_request(address, &release).is_err() {
            return;
        }
    }
}
