//! Who may be inside, apart from locking and waiting.

use std::collections::HashMap;
use std::mem;
use std::task::Waker;

use crate::{Resource, Token};

/// The rooms behind the gate, one for each resource that somebody visits.
#[derive(Default)]
pub(super) struct State {
    rooms: HashMap<Resource, Room>,
    last_listener: u64,
}

/// Invariant: everybody inside has the same token, and it is not above `newest`.
#[derive(Default)]
struct Room {
    /// The visits there are, from before their mark is checked until they have left. The room is
    /// kept for them all, because of `newest`: a visit whose claim was accepted a while ago must
    /// learn here what came and went meanwhile.
    visits: usize,
    /// The highest token that asked for its turn. Never goes down.
    newest: Option<Token>,
    /// The token that is inside, and how many visits under it; at least one.
    inside: Option<(Token, usize)>,
    /// To be woken when the last one leaves and when a newer token asks for its turn.
    listeners: Vec<(ListenerId, Waker)>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct ListenerId(u64);

/// Wakers taken out of the state. They are woken or dropped only when the lock is free: either may
/// run code that comes back to the gate.
#[derive(Default)]
#[must_use = "whoever sleeps has to be woken"]
pub(super) struct Listeners(Vec<(ListenerId, Waker)>);

/// The answer to a visit that asks for its turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// It is inside now.
    Inside,
    /// Others have to leave first.
    Wait,
    /// A newer token has asked already: this one never gets in.
    Overtaken(Token),
}

impl State {
    /// Begins a visit. Must come before the mark is checked.
    pub(super) fn arrive(&mut self, resource: &Resource) {
        match self.rooms.get_mut(resource) {
            Some(room) => room.visits += 1,
            None => {
                let room = Room { visits: 1, ..Room::default() };
                self.rooms.insert(resource.clone(), room);
            }
        }
    }

    /// Lets a visit in, once, that has arrived and whose claim was accepted, if it is its turn.
    pub(super) fn turn(&mut self, resource: &Resource, token: Token) -> (Turn, Listeners) {
        let Some(room) = self.rooms.get_mut(resource) else {
            // There is one for whoever has arrived. If not, nobody gets in.
            return (Turn::Wait, Listeners::default());
        };
        let mut woken = Vec::new();
        match room.newest {
            Some(newest) if newest > token => {
                return (Turn::Overtaken(newest), Listeners(woken));
            }
            Some(newest) if newest == token => {}
            _ => {
                room.newest = Some(token);
                woken = mem::take(&mut room.listeners);
            }
        }
        let turn = match &mut room.inside {
            None => {
                room.inside = Some((token, 1));
                Turn::Inside
            }
            Some((inside, visits)) if *inside == token => {
                *visits += 1;
                Turn::Inside
            }
            Some(_) => Turn::Wait,
        };
        (turn, Listeners(woken))
    }

    /// Ends a visit, that was let in or not.
    pub(super) fn leave(&mut self, resource: &Resource, was_inside: bool) -> Listeners {
        let Some(room) = self.rooms.get_mut(resource) else { return Listeners::default() };
        let mut woken = Vec::new();
        if was_inside && let Some((_, visits)) = &mut room.inside {
            *visits -= 1;
            if *visits == 0 {
                room.inside = None;
                woken = mem::take(&mut room.listeners);
            }
        }
        room.visits -= 1;
        if room.visits == 0 {
            self.rooms.remove(resource);
        }
        Listeners(woken)
    }

    /// Whether a newer token has asked for its turn.
    pub(super) fn is_overtaken(&self, resource: &Resource, token: Token) -> bool {
        self.rooms.get(resource).is_some_and(|room| room.newest > Some(token))
    }

    /// Has `waker` woken at the next change, in place of the one that was there for `id`, which it
    /// gives back.
    pub(super) fn listen(
        &mut self,
        resource: &Resource,
        id: &mut Option<ListenerId>,
        waker: Waker,
    ) -> Option<Waker> {
        let room = self.rooms.get_mut(resource)?;
        let id = *id.get_or_insert_with(|| {
            self.last_listener += 1;
            ListenerId(self.last_listener)
        });
        match room.listeners.iter_mut().find(|(known, _)| *known == id) {
            Some((_, known)) => Some(mem::replace(known, waker)),
            None => {
                room.listeners.push((id, waker));
                None
            }
        }
    }

    /// Undoes [`listen`](Self::listen), and gives back the waker that was there for `id`.
    pub(super) fn unlisten(&mut self, resource: &Resource, id: ListenerId) -> Option<Waker> {
        let listeners = &mut self.rooms.get_mut(resource)?.listeners;
        let at = listeners.iter().position(|(known, _)| *known == id)?;
        Some(listeners.swap_remove(at).1)
    }

    /// How many resources somebody visits.
    pub(super) fn rooms(&self) -> usize {
        self.rooms.len()
    }
}

impl Listeners {
    pub(super) fn wake(self) {
        self.0.into_iter().for_each(|(_, waker)| waker.wake());
    }
}
