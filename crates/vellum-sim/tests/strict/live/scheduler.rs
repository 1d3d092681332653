//! The scheduler: fair in the weakest sense, and otherwise the victim's enemy.

use shuttle::scheduler::{Schedule, Scheduler, Task, TaskId};

use super::board::{Bad, Board, Phase, Shared, VICTIM};

/// How the victim is kept from ending. Every CPU has a step at least once in so many steps of the
/// others, as long as it can go on; that is all that is promised.
#[derive(Clone, Copy, Debug)]
pub struct Strategy {
    pub seed: u64,
    /// The victim's turn comes after so many steps of the others, at the latest.
    pub victim: u64,
    /// And that of each of the others.
    pub other: u64,
    /// Of a hundred locks that the victim is about to take, for how many the scheduler waits until
    /// somebody else holds it; until the table has a busy entry; until it is unhooked; until what
    /// the victim has read there was changed; until a page's entry is full that the victim has read
    /// as empty (it reads such an entry only while that is empty).
    pub bad: [(Bad, u8); 4],
    /// Steps of the others between two of the victim's where no lock is about to be taken, at most.
    pub gap: u64,
    /// Of a hundred steps, how many give the turn from one of the others to another.
    pub switch: u8,
}

impl Strategy {
    /// One that starves nobody.
    pub const SLOW: Strategy = Strategy {
        seed: 0,
        victim: 1,
        other: 1,
        bad: [(Bad::Held, 0), (Bad::Busy, 0), (Bad::Dead, 0), (Bad::Changed, 0)],
        gap: 0,
        switch: 0,
    };

    /// The one of this number.
    pub fn of(seed: u64) -> Self {
        use Bad::{Busy, Changed, Dead, Filled, Held};
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        let bad = match seed % 6 {
            0 => [(Held, 100), (Busy, 0), (Dead, 0), (Changed, 0)],
            1 => [(Busy, 100), (Held, 0), (Dead, 0), (Changed, 0)],
            2 => [(Dead, 100), (Changed, 0), (Held, 0), (Busy, 0)],
            3 => [(Changed, 100), (Dead, 0), (Held, 0), (Busy, 0)],
            4 => [(Busy, 40), (Held, 20), (Dead, 20), (Changed, 20)],
            5 if seed % 12 == 5 => [(Filled, 100), (Held, 0), (Busy, 0), (Dead, 0)],
            // It is only slow.
            _ => [(Held, 0), (Busy, 0), (Dead, 0), (Changed, 0)],
        };
        // It takes the others a while until an entry is as the scheduler wants it.
        let victim = if bad[0].0 == Filled { 1536 } else { [96, 384, 1536][dice.below(3) as usize] };
        let (gap, switch) = ([0, 3, 24][dice.below(3) as usize], [2, 10, 50][dice.below(3) as usize]);
        Strategy { seed, victim, other: 48, bad, gap, switch }
    }
}

/// A generator that repeats.
#[derive(Clone, Debug)]
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        // xorshift64*
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end.max(1)
    }

    fn percent(&mut self, of: u8) -> bool {
        self.below(100) < u64::from(of)
    }
}

/// What the victim's next step waits for.
#[derive(Clone, Copy, Debug)]
enum Wait {
    For(Bad),
    Steps(u64),
}

pub struct Starver {
    board: Shared,
    strategy: Strategy,
    /// Steps of the victim's own that its operation may take.
    most: u64,
    dice: Dice,
    ran: bool,
    now: u64,
    /// When each task had its last step.
    last: Vec<u64>,
    current: usize,
    wait: Wait,
}

impl Starver {
    pub fn new(board: Shared, strategy: Strategy, most: u64) -> Self {
        let dice = Dice(strategy.seed.wrapping_add(0x5eed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        Starver { board, strategy, most, dice, ran: false, now: 0, last: Vec::new(), current: 0, wait: Wait::Steps(0) }
    }

    /// The victim has come to another place: what its next step is to wait for.
    fn aim(&mut self, board: &Board, waits: bool) -> Wait {
        let Strategy { bad, gap, .. } = self.strategy;
        if board.is_looking() && bad.contains(&(Bad::Filled, 100)) {
            return Wait::For(Bad::Filled);
        }
        if board.is_locking() && !waits {
            let mut roll = self.dice.below(100) as u8;
            for (bad, share) in bad {
                if roll < share {
                    return Wait::For(bad);
                }
                roll -= share;
            }
        }
        Wait::Steps(self.dice.below(1 + if waits { gap.max(16) } else { gap }))
    }

    /// One of the others: the one before, mostly.
    fn other(&mut self, others: &[usize]) -> usize {
        let late = others.iter().copied().min_by_key(|task| self.last[*task]).unwrap();
        let overdue = self.now - self.last[late] > self.strategy.other;
        if overdue {
            late
        } else if others.contains(&self.current) && !self.dice.percent(self.strategy.switch) {
            self.current
        } else {
            others[self.dice.below(others.len() as u64) as usize]
        }
    }
}

impl Scheduler for Starver {
    fn new_execution(&mut self) -> Option<Schedule> {
        (!core::mem::replace(&mut self.ran, true)).then(|| Schedule::new(self.strategy.seed))
    }

    fn next_task(&mut self, runnable: &[&Task], current: Option<TaskId>, yields: bool) -> Option<TaskId> {
        let shared = self.board.clone();
        let mut board = shared.get();
        self.now += 1;
        let tasks: Vec<usize> = runnable.iter().map(|task| usize::from(task.id())).collect();
        let most = tasks.iter().max().copied().unwrap_or(0);
        self.last.resize(self.last.len().max(most + 1), self.now);
        let came = current.map(usize::from);
        let others: Vec<usize> = tasks.iter().copied().filter(|task| *task != VICTIM).collect();
        let victim = tasks.contains(&VICTIM);
        let chosen = match board.phase {
            // In turn, once there is somebody to wait for.
            Phase::Apart if victim && !yields => VICTIM,
            Phase::Apart => tasks[self.dice.below(tasks.len() as u64) as usize],
            Phase::Warm(left) => {
                board.phase = Phase::Warm(left.saturating_sub(1));
                if (left == 0 || others.is_empty()) && victim { VICTIM } else { self.other(&others) }
            }
            Phase::Under => {
                match came {
                    Some(VICTIM) if yields => board.taken.looks += 1,
                    Some(VICTIM) => board.taken.work += 1,
                    _ => board.taken.others += 1,
                }
                let most_others = self.most.saturating_mul(self.strategy.victim);
                if board.taken.work > self.most || board.taken.others > most_others {
                    board.taken.late = true;
                    return None;
                }
                if came == Some(VICTIM) {
                    self.wait = self.aim(&board, yields);
                }
                let waited = self.now - self.last[VICTIM] - 1;
                let due = waited >= self.strategy.victim
                    || match self.wait {
                        Wait::For(bad) => board.is(bad),
                        Wait::Steps(steps) => waited >= steps,
                    };
                if victim && (due || others.is_empty()) { VICTIM } else { self.other(&others) }
            }
        };
        self.last[chosen] = self.now;
        self.current = chosen;
        board.goes_on(chosen);
        Some(TaskId::from(chosen))
    }

    fn next_u64(&mut self) -> u64 {
        self.dice.below(u64::MAX)
    }
}
