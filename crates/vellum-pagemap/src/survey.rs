//! All that a process has mapped, gone through once: its VMAs, and its tables.

use crate::calibrate::Tells;
use crate::process::{Memory, Target, Unreadable, Vma};
use crate::tables::{Counter, Geometry, Mapped, Tables};
use crate::{Categories, Holds, Pace, Pagemap, Query, Region, ScanError};

/// What this many tables of the second level span is gone through together: pages first, then which
/// tables exist.
const TOGETHER: u64 = 16;
/// Stretches that a sample has at least.
const LEAST: u64 = 32;

/// Why a process can't be surveyed.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    /// It can't be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// What it has mapped can't be.
    #[error("what process {0} has mapped can't be read: {1}")]
    Scan(i32, #[source] ScanError),
}

impl SurveyError {
    fn of(pid: i32, error: ScanError) -> Self {
        match error {
            // It has ended in the middle.
            ScanError::Io(error) if error.raw_os_error() == Some(libc::ESRCH) => Unreadable::Gone(pid).into(),
            error => SurveyError::Scan(pid, error),
        }
    }
}

/// What a VMA has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Surveyed {
    /// Where.
    pub vma: Vma,
    /// Bytes that are in memory.
    pub resident: u64,
    /// Bytes whose entries are swap entries, or markers.
    pub swapped: u64,
    /// Of `resident`, bytes that single entries of upper tables map.
    pub huge: u64,
    /// Of `resident`, bytes that are the page of zeros.
    pub zero: u64,
    /// Tables of the lowest level in use. One that several VMAs share is the first one's.
    pub used: u64,
    /// Tables of the lowest level that hold nothing.
    pub empty: u64,
}

/// What was found.
#[derive(Clone, Debug)]
pub struct Survey {
    /// What Linux says, before.
    pub before: Memory,
    /// And after: if they differ, the process has changed meanwhile, and so may the tables be wrong
    /// by that.
    pub after: Memory,
    /// How addresses are translated.
    pub geometry: Geometry,
    /// The tables.
    pub tables: Tables,
    /// The VMAs, in the order of addresses.
    pub vmas: Vec<Surveyed>,
    /// How long its address space was locked.
    pub holds: Holds,
    /// If only a sample was gone through: all figures of pages and tables are what would be found
    /// of all of it, but those of the lock.
    pub sample: Option<Sample>,
    /// Whether Linux was asked, or every entry read (then huge pages look like small ones, and
    /// empty tables are known by number only).
    pub scanned: bool,
}

impl Survey {
    /// Tables that hold nothing, or lead only to such: what Linux counts and nobody needs.
    /// Negative, or not quite right, if the process has changed meanwhile.
    pub fn empty(&self) -> i64 {
        (self.after.tables / self.geometry.page()) as i64 - self.tables.needed() as i64
    }

    /// Whether anything that Linux says has changed meanwhile.
    pub fn changed(&self) -> bool {
        self.before != self.after
    }

    /// The fewest tables that hold as many entries.
    pub fn least(&self) -> u64 {
        let mut tables = self.tables.entries.div_ceil(self.geometry.entries());
        let mut least = tables + self.tables.deposited;
        for level in 1..self.geometry.levels() {
            // What is huge needs entries of its level.
            let huge = self.vmas.iter().filter(|one| self.geometry.level(one.vma.page).max(1) == level);
            tables += huge.map(|one| one.huge).sum::<u64>() / self.geometry.span(level - 1);
            tables = tables.div_ceil(self.geometry.entries());
            least += tables;
        }
        least
    }
}

/// What a survey shows while it goes on.
pub trait Watcher {
    /// Pages in a row that are alike, in ascending order, and the VMA that they are of.
    fn region(&mut self, region: &Region, vma: &Vma) {
        let _ = (region, vma);
    }

    /// A table of the lowest level that exists, in ascending order: its range's first address and
    /// how many entries are not empty. None: a huge page is there.
    fn table(&mut self, start: u64, entries: Option<u64>) {
        let _ = (start, entries);
    }

    /// So much of the addresses (in bytes, of VMAs) has been gone through.
    fn went(&mut self, bytes: u64) {
        let _ = bytes;
    }
}

/// Nobody.
impl Watcher for () {}

/// How to go through it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// How empty tables are found one by one ([`crate::Kernel`]).
    pub tells: Tells,
    /// Go through this share of the addresses only, chosen by chance from this seed.
    pub sample: Option<(f64, u64)>,
}

/// What a sample says: of stretches of addresses, each what a table of the second level spans.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// How many there are.
    pub stretches: u64,
    /// How many were gone through.
    pub seen: u64,
    /// With a confidence of 95 %, the tables of the lowest level that are in use are no more and no
    /// less than this from what is told.
    pub error: u64,
}

/// Go through all that a process has mapped.
///
/// # Errors
/// [`SurveyError`]: it is gone, or may not be read, or the pace was told to stop.
pub fn survey(
    target: &Target,
    pagemap: &mut Pagemap,
    pace: &mut Pace<'_>,
    options: &Options,
    watcher: &mut impl Watcher,
) -> Result<Survey, SurveyError> {
    let failed = |error| SurveyError::of(target.pid(), error);
    let before = target.memory()?;
    let vmas = target.vmas()?;
    let geometry = Geometry::of(pagemap.page_size(), vmas.last().map_or(0, |vma| vma.end));
    let mut vmas = vmas.into_iter().map(Surveyed::nothing).collect::<Vec<_>>();
    let mut counter = Counter::new(geometry);
    let mut walk = Walk { pagemap, pace, watcher, geometry, tells: options.tells, existing: Vec::new() };
    let mut sample = None;
    let mut from = 0;
    if let Some((share, seed)) = options.sample {
        let mut sampled =
            Sampled { share, random: fastrand::Rng::with_seed(seed), sum: Sample::default(), variance: 0.0 };
        for i in 0..vmas.len() {
            let inside = sampled.inside(&vmas[i].vma, geometry);
            if inside.0 < inside.1 {
                walk.all(&mut vmas, (from, inside.0), &mut counter).map_err(failed)?;
                let found = sampled.some(&mut walk, &mut vmas[i], inside);
                counter.tables.add(&found.map_err(failed)?);
                from = inside.1;
            }
        }
        sample = Some(Sample { error: (1.96 * sampled.variance.sqrt()) as u64, ..sampled.sum });
    }
    walk.all(&mut vmas, (from, u64::MAX), &mut counter).map_err(failed)?;
    let (holds, scanned) = (walk.pace.holds(), walk.pagemap.scans());
    let after = target.memory()?;
    Ok(Survey { before, after, geometry, tables: counter.tables, vmas, holds, sample, scanned })
}

/// Goes through addresses.
struct Walk<'a, 'p, W> {
    pagemap: &'a mut Pagemap,
    pace: &'a mut Pace<'p>,
    watcher: &'a mut W,
    geometry: Geometry,
    tells: Tells,
    existing: Vec<u64>,
}

impl<W: Watcher> Walk<'_, '_, W> {
    /// All VMAs as far as they lie in a range, which begins and ends where none does, or where a
    /// table of the second level does.
    fn all(&mut self, vmas: &mut [Surveyed], range: (u64, u64), counter: &mut Counter) -> Result<(), ScanError> {
        let stretch = TOGETHER * self.geometry.span(1);
        let mut at = range.0;
        let mut first = vmas.partition_point(|one| one.vma.end <= at);
        while at < range.1 && first < vmas.len() && vmas[first].vma.start < range.1 {
            // From where the next VMA is, to the next multiple, or to the end of what lies close
            // together.
            at = at.max(vmas[first].vma.start / self.geometry.span(0) * self.geometry.span(0));
            let end = (at / stretch + 1).saturating_mul(stretch).min(range.1);
            let behind = vmas.partition_point(|one| one.vma.start < end);
            let here = &mut vmas[first..behind];
            let to = here.last().map_or(end, |one| one.vma.end.min(end));
            self.some(here, (at, to), counter)?;
            at = end;
            first += here.iter().take_while(|one| one.vma.end <= end).count();
        }
        Ok(())
    }

    /// A range, and the VMAs that it is of.
    fn some(&mut self, vmas: &mut [Surveyed], range: (u64, u64), counter: &mut Counter) -> Result<(), ScanError> {
        let told = Categories::HUGE | Categories::FILE | Categories::ZERO | Categories::GUARD;
        let mut cursor = 0;
        let geometry = self.geometry;
        self.pagemap.scan(range, &Query::there(Categories::THERE | told), self.pace, |region| {
            split(vmas, &mut cursor, region, |one, part| {
                let mapped = one.mapped(&part, geometry);
                one.add(&part, mapped);
                counter.add(&part, mapped);
                self.watcher.region(&part, &one.vma);
            });
        })?;
        self.existing.clear();
        let tell = |table| self.existing.push(table);
        match &self.tells {
            Tells::Nothing => {}
            Tells::Tables => self.pagemap.tables(range, self.pace, tell)?,
            Tells::Time(timing) => self.pagemap.tables_by_time(range, timing, self.pace, tell)?,
        }
        let mut cursor = 0;
        for leaf in counter.take((self.tells != Tells::Nothing).then_some(&self.existing[..])) {
            let entries = leaf.table();
            while vmas.get(cursor).is_some_and(|one| one.vma.end <= leaf.start) {
                cursor += 1;
            }
            if let Some(one) = vmas.get_mut(cursor) {
                one.used += u64::from(entries.is_some_and(|entries| entries > 0));
                one.empty += u64::from(entries == Some(0));
            }
            self.watcher.table(leaf.start, entries);
        }
        let went = vmas.iter().map(|one| one.vma.end.min(range.1).saturating_sub(one.vma.start.max(range.0)));
        self.watcher.went(went.sum());
        Ok(())
    }
}

/// A sample: of each large VMA, some of the stretches that lie in it entirely, as many from each
/// part of it.
struct Sampled {
    share: f64,
    random: fastrand::Rng,
    sum: Sample,
    /// Of the number of tables in use.
    variance: f64,
}

impl Sampled {
    /// What of a VMA is worth sampling.
    fn inside(&self, vma: &Vma, geometry: Geometry) -> (u64, u64) {
        let span = geometry.span(1);
        let inside = (vma.start.next_multiple_of(span), vma.end / span * span);
        let stretches = inside.1.saturating_sub(inside.0) / span;
        // Of less than that, a sample says little.
        if stretches as f64 * self.share < LEAST as f64 { (0, 0) } else { inside }
    }

    /// Some of it, and what all of it has by that.
    fn some<W: Watcher>(
        &mut self,
        walk: &mut Walk<'_, '_, W>,
        one: &mut Surveyed,
        (start, end): (u64, u64),
    ) -> Result<Tables, ScanError> {
        let span = walk.geometry.span(1);
        let stretches = (end - start) / span;
        let seen = ((stretches as f64 * self.share) as u64).clamp(LEAST, stretches);
        let mut counter = Counter::new(walk.geometry);
        let mut part = Surveyed::nothing(one.vma.clone());
        let (mut sum, mut squares) = (0.0, 0.0);
        for n in 0..seen {
            let (from, to) = (n * stretches / seen, (n + 1) * stretches / seen);
            let at = start + self.random.u64(from..to) * span;
            let before = counter.tables.used[0];
            walk.some(std::slice::from_mut(&mut part), (at, at + span), &mut counter)?;
            let used = (counter.tables.used[0] - before) as f64;
            (sum, squares) = (sum + used, squares + used * used);
        }
        let (all, n) = (stretches as f64, seen as f64);
        let spread = (squares - sum * sum / n).max(0.0) / (n - 1.0).max(1.0);
        self.variance += all * all * (spread / n) * (1.0 - n / all);
        self.sum.stretches += stretches;
        self.sum.seen += seen;
        let scale = |count: u64| (count as f64 * all / n).round() as u64;
        one.resident += scale(part.resident);
        one.swapped += scale(part.swapped);
        one.huge += scale(part.huge);
        one.zero += scale(part.zero);
        one.used += scale(part.used);
        one.empty += scale(part.empty);
        let found = counter.tables;
        Ok(Tables {
            // Tables of the highest level span so much that each was met.
            used: [scale(found.used[0]), scale(found.used[1]), found.used[2]],
            leading: [scale(found.leading[0]), scale(found.leading[1]), found.leading[2]],
            deposited: scale(found.deposited),
            empty: found.empty.map(scale),
            occupancy: found.occupancy.map(scale),
            entries: scale(found.entries),
        })
    }
}

/// A region by VMAs: what is in none of them was mapped meanwhile, and is left out.
fn split(vmas: &mut [Surveyed], cursor: &mut usize, mut region: Region, mut each: impl FnMut(&mut Surveyed, Region)) {
    while !region.is_empty() {
        while vmas.get(*cursor).is_some_and(|one| one.vma.end <= region.start) {
            *cursor += 1;
        }
        let Some(one) = vmas.get_mut(*cursor).filter(|one| one.vma.start < region.end) else { return };
        let part = Region {
            start: region.start.max(one.vma.start),
            end: region.end.min(one.vma.end),
            categories: region.categories,
        };
        each(one, part);
        region.start = part.end;
    }
}

impl Surveyed {
    fn nothing(vma: Vma) -> Self {
        Surveyed { vma, resident: 0, swapped: 0, huge: 0, zero: 0, used: 0, empty: 0 }
    }

    /// By what some of it is mapped.
    fn mapped(&self, region: &Region, geometry: Geometry) -> Mapped {
        if self.vma.page > geometry.page() {
            return Mapped { level: geometry.level(self.vma.page), deposits: false };
        }
        let huge = region.categories.contains(Categories::HUGE);
        Mapped { level: usize::from(huge), deposits: huge && !self.vma.file }
    }

    fn add(&mut self, region: &Region, mapped: Mapped) {
        let has = |category| if region.categories.contains(category) { region.len() } else { 0 };
        self.resident += has(Categories::PRESENT);
        self.swapped += has(Categories::SWAPPED);
        self.huge += if mapped.level > 0 { has(Categories::PRESENT) } else { 0 };
        self.zero += has(Categories::ZERO);
    }
}
