//! Turns: what takes several steps, between which other tasks run, is done by one task at a time.
//!
//! First come, first served: a turn that ends goes to the first in line and is never free in
//! between, so that no task that comes later overtakes. A task that stops waiting leaves the line,
//! or hands on the turn that it was given and never saw.

use alloc::collections::VecDeque;
use core::future::Future;
use core::pin::Pin;
use core::task::{Context, Poll, Waker};
use spin::Mutex;

/// See the module's text.
#[derive(Default)]
pub struct Turns(Mutex<Line>);

#[derive(Default)]
struct Line {
    /// What the next to come gets.
    next: u64,
    /// The number that has the turn.
    served: Option<u64>,
    waiting: VecDeque<(u64, Waker)>,
}

impl Turns {
    /// Waits for a turn, which ends when the result is dropped.
    pub fn take(&self) -> Taking<'_> {
        Taking { turns: self, number: None }
    }

    /// Serves the next in line, if `number` is served now; otherwise takes `number` out of the
    /// line.
    fn leave(&self, number: u64) {
        let mut line = self.0.lock();
        let (next, left) = if line.served == Some(number) {
            let next = line.waiting.pop_front();
            line.served = next.as_ref().map(|(number, _)| *number);
            (next, None)
        } else {
            let at = line.waiting.iter().position(|(waiting, _)| *waiting == number);
            (None, at.and_then(|at| line.waiting.remove(at)))
        };
        // A waker runs code of its own, when it is dropped too: not under the lock.
        drop(line);
        drop(left);
        if let Some((_, waker)) = next {
            waker.wake();
        }
    }
}

/// A turn.
#[must_use = "the turn ends when this is dropped"]
pub struct Turn<'t> {
    turns: &'t Turns,
    number: u64,
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.turns.leave(self.number);
    }
}

/// The future of [`Turns::take`].
#[must_use = "to wait is to await"]
pub struct Taking<'t> {
    turns: &'t Turns,
    number: Option<u64>,
}

impl<'t> Future for Taking<'t> {
    type Output = Turn<'t>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Turn<'t>> {
        let turns = self.turns;
        let mut line = turns.0.lock();
        let number = match self.number {
            Some(number) => number,
            None if line.served.is_some() && line.waiting.try_reserve(1).is_err() => {
                // No memory for a place in line: ask again instead of sleeping for ever.
                drop(line);
                context.waker().wake_by_ref();
                return Poll::Pending;
            }
            None => {
                let number = line.next;
                line.next += 1;
                self.number = Some(number);
                match line.served {
                    None => line.served = Some(number),
                    Some(_) => line.waiting.push_back((number, context.waker().clone())),
                }
                number
            }
        };
        if line.served == Some(number) {
            self.number = None;
            return Poll::Ready(Turn { turns, number });
        }
        let place = line.waiting.iter_mut().find(|(waiting, _)| *waiting == number);
        let stale = place.map(|(_, waker)| core::mem::replace(waker, context.waker().clone()));
        drop(line);
        drop(stale);
        Poll::Pending
    }
}

impl Drop for Taking<'_> {
    fn drop(&mut self) {
        if let Some(number) = self.number {
            self.turns.leave(number);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Count;
    use core::pin::pin;

    fn poll<'t>(taking: Pin<&mut Taking<'t>>, waker: &Waker) -> Option<Turn<'t>> {
        match taking.poll(&mut Context::from_waker(waker)) {
            Poll::Ready(turn) => Some(turn),
            Poll::Pending => None,
        }
    }

    #[test]
    fn first_come_first_served_and_none_overtakes() {
        let turns = Turns::default();
        let [(_, first_waker), (second_count, second_waker), (_, third_waker)] = [(); 3].map(|()| Count::new());
        let first = poll(pin!(turns.take()), &first_waker).expect("the first to come waits for nothing");
        let mut second = pin!(turns.take());
        assert!(poll(second.as_mut(), &second_waker).is_none());
        drop(first);
        assert_eq!(second_count.woken(), 1);
        let mut third = pin!(turns.take());
        assert!(poll(third.as_mut(), &third_waker).is_none(), "the turn is the second's, which has not seen it yet");
        let turn = poll(second.as_mut(), &second_waker);
        assert!(turn.is_some());
        drop(turn);
        assert!(poll(third, &third_waker).is_some());
    }

    #[test]
    fn what_stops_waiting_keeps_no_turn() {
        let turns = Turns::default();
        let [(_, waker), (last_count, last_waker)] = [(); 2].map(|()| Count::new());
        let first = poll(pin!(turns.take()), &waker).unwrap();
        let mut waits = turns.take();
        let mut served = turns.take();
        assert!(poll(Pin::new(&mut waits), &waker).is_none());
        assert!(poll(Pin::new(&mut served), &waker).is_none());
        let mut last = pin!(turns.take());
        assert!(poll(last.as_mut(), &last_waker).is_none());
        drop(waits);
        drop(first);
        assert_eq!(last_count.woken(), 0, "it is the other's turn");
        drop(served);
        assert_eq!(last_count.woken(), 1, "its turn came though the one before never saw its own");
        assert!(poll(last, &last_waker).is_some());
    }
}
