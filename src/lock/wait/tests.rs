use super::*;

const SECOND: Duration = Duration::from_secs(1);

fn job() -> Resource {
    Resource::new("job").unwrap()
}

fn secret(owner: u8) -> OwnerTokenHash {
    OwnerTokenHash::from_slice(&[owner; 32]).unwrap()
}

fn join(lines: &Lines, owner: u8) -> Place {
    lines.join(&job(), secret(owner))
}

fn is_woken(place: &Place) -> bool {
    let mut changed = std::pin::pin!(place.changed());
    let mut cx = std::task::Context::from_waker(std::task::Waker::noop());
    std::future::Future::poll(changed.as_mut(), &mut cx).is_ready()
}

/// Somebody else holds the lock, and the front knows.
fn told(lines: &Lines, owner: u8) -> Place {
    let place = join(lines, owner);
    assert_eq!(place.turn(), Turn::Ask);
    place.held_until(SECOND);
    assert_eq!(place.turn(), Turn::Front(SECOND));
    while is_woken(&place) {}
    place
}

#[test]
fn only_the_first_asks_and_those_behind_hear_what_it_is_told() {
    let lines = Lines::default();
    let (a, b) = (join(&lines, 1), join(&lines, 2));
    assert_eq!((a.turn(), b.turn()), (Turn::Ask, Turn::Behind(None)));
    assert!(!is_woken(&b));
    a.held_until(SECOND);
    assert!(is_woken(&b));
    assert_eq!((a.turn(), b.turn()), (Turn::Front(SECOND), Turn::Behind(Some(SECOND))));
    assert_eq!(join(&lines, 3).turn(), Turn::Behind(Some(SECOND)));
}

#[test]
fn a_release_is_the_turn_of_the_first() {
    let lines = Lines::default();
    let (a, b) = (told(&lines, 1), join(&lines, 2));
    lines.released(Some(&Resource::new("other").unwrap()));
    assert_eq!(a.turn(), Turn::Front(SECOND));
    lines.released(Some(&job()));
    assert!(is_woken(&a) && !is_woken(&b));
    assert_eq!((a.turn(), b.turn()), (Turn::Ask, Turn::Behind(Some(SECOND))));
    lines.released(None);
    assert!(is_woken(&a));
    assert_eq!(a.turn(), Turn::Ask);
}

/// A release between what the store decided and what the request did with it.
#[test]
fn a_release_while_the_first_asks_is_not_lost() {
    let lines = Lines::default();
    let a = join(&lines, 1);
    assert_eq!(a.turn(), Turn::Ask);
    lines.released(Some(&job()));
    a.held_until(SECOND);
    assert_eq!(a.turn(), Turn::Ask);
    assert!(is_woken(&a));
}

#[test]
fn who_leaves_without_the_lock_makes_the_next_ask() {
    let lines = Lines::default();
    let (a, b, c) = (told(&lines, 1), join(&lines, 2), join(&lines, 3));
    drop(a);
    assert!(is_woken(&b) && !is_woken(&c));
    assert_eq!((b.turn(), c.turn()), (Turn::Ask, Turn::Behind(None)));
    // Nothing happens at the front.
    let d = join(&lines, 4);
    drop(c);
    assert!(!is_woken(&b) && !is_woken(&d));
    assert_eq!(d.turn(), Turn::Behind(None));
}

#[test]
fn who_leaves_with_the_lock_tells_until_when() {
    let lines = Lines::default();
    let (mut a, b, c) = (told(&lines, 1), join(&lines, 2), join(&lines, 3));
    assert!(lines.lock().lines[&job()].slots.values().any(|slot| slot.due));
    a.granted_until(SECOND * 2);
    drop(a);
    assert!(is_woken(&b), "it looks after the expiry from now on");
    assert_eq!((b.turn(), c.turn()), (Turn::Front(SECOND * 2), Turn::Behind(Some(SECOND * 2))));
    b.due();
    assert_eq!(b.turn(), Turn::Ask);
}

/// By a client that was told of the grant by another of its requests.
#[test]
fn a_release_before_the_granted_has_left_is_not_lost() {
    let lines = Lines::default();
    let (mut a, b) = (told(&lines, 1), join(&lines, 2));
    a.granted_until(SECOND * 2);
    lines.released(Some(&job()));
    drop(a);
    assert_eq!(b.turn(), Turn::Ask);
}

#[test]
fn requests_with_one_owner_token_share_a_place() {
    let lines = Lines::default();
    let (mut a, b) = (told(&lines, 1), told_behind(&lines, 2));
    let again = join(&lines, 1);
    assert_eq!(again.turn(), Turn::Ask, "as the first of them may");
    again.held_until(SECOND);
    assert_eq!(b.turn(), Turn::Behind(Some(SECOND)));
    // Behind, it is before those who came after its first request.
    let c = join(&lines, 3);
    let b_again = join(&lines, 2);
    a.granted_until(SECOND * 2);
    drop(a);
    assert_eq!(again.turn(), Turn::Ask, "the grant is its own");
    drop(again);
    assert_eq!((b.turn(), c.turn()), (Turn::Ask, Turn::Behind(None)));
    assert_eq!(b_again.turn(), Turn::Ask);
    drop(b);
    assert_eq!(c.turn(), Turn::Behind(None));
    drop(b_again);
    assert_eq!(c.turn(), Turn::Ask);
}

fn told_behind(lines: &Lines, owner: u8) -> Place {
    let place = join(lines, owner);
    assert_eq!(place.turn(), Turn::Behind(Some(SECOND)));
    place
}

/// It has the lock and was told so again, while others wait for it.
#[test]
fn who_leaves_from_behind_with_the_lock_changes_nothing() {
    let lines = Lines::default();
    let (a, mut b) = (told(&lines, 1), join(&lines, 2));
    b.granted_until(SECOND * 2);
    drop(b);
    assert!(!is_woken(&a));
    assert_eq!(a.turn(), Turn::Front(SECOND));
}

#[test]
fn lines_are_forgotten_with_the_last_in_them() {
    let lines = Lines::default();
    let places: Vec<_> = (0..3).map(|owner| join(&lines, owner)).collect();
    drop(places);
    assert!(lines.lock().lines.is_empty());
    assert_eq!(join(&lines, 1).turn(), Turn::Ask);
}
