//! Surveys a process once: its VMAs, pages and page tables.

use crate::calibrate::Detection;
use crate::process::{Memory, Target, Unreadable, Vma};
use crate::tables::{Counter, Geometry, Mapped, Tables};
use crate::{Categories, LockTimes, Pace, Pagemap, Query, Region, ScanError};

/// The number of second-level page tables whose range one part of a survey covers: first it scans
/// the range's pages, then its existing last-level page tables.
const TOGETHER: u64 = 16;
/// The fewest spans (ranges of one second-level page table) in a sample of a VMA.
const LEAST: u64 = 32;

/// The reason why a process can't be surveyed.
#[derive(Debug, thiserror::Error)]
pub enum SurveyError {
    /// The process can't be read.
    #[error(transparent)]
    Unreadable(#[from] Unreadable),
    /// The process's pages can't be scanned.
    #[error("what process {0} has mapped can't be read: {1}")]
    Scan(i32, #[source] ScanError),
}

impl SurveyError {
    fn of(pid: i32, error: ScanError) -> Self {
        match error {
            // The process ended during the scan.
            ScanError::Io(error) if error.raw_os_error() == Some(libc::ESRCH) => Unreadable::Gone(pid).into(),
            error => SurveyError::Scan(pid, error),
        }
    }
}

/// The pages and page tables of a VMA.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VmaSurvey {
    /// The VMA.
    pub vma: Vma,
    /// Bytes present in memory.
    pub resident: u64,
    /// Bytes whose PTEs are swap entries, migration entries or markers.
    pub swapped: u64,
    /// Of `resident`, bytes mapped by huge PTEs.
    pub huge: u64,
    /// Of `resident`, bytes mapped to the zero page.
    pub zero: u64,
    /// Last-level page tables in use. One that several VMAs share belongs to the first of them.
    pub used: u64,
    /// Empty last-level page tables.
    pub empty: u64,
}

/// The result of a survey.
#[derive(Clone, Debug)]
pub struct Survey {
    /// The process's memory as Linux reports it, before the scan.
    pub before: Memory,
    /// The process's memory as Linux reports it, after the scan. If it differs from `before`, the
    /// process changed during the scan, and the page-table counts may be wrong by as much.
    pub after: Memory,
    /// The geometry of the address space.
    pub geometry: Geometry,
    /// The page tables of the whole process.
    pub tables: Tables,
    /// The VMAs in ascending order.
    pub vmas: Vec<VmaSurvey>,
    /// The times for which the mmap lock was held.
    pub lock_times: LockTimes,
    /// Set if only a sample was scanned. Then all counts of pages and page tables are extrapolated;
    /// the lock times are not.
    pub sample: Option<Sample>,
    /// True if `PAGEMAP_SCAN` was used. Otherwise every pagemap entry was read: huge PTEs then look
    /// like small ones, and only the number of empty page tables is known, not their addresses.
    pub scanned: bool,
}

impl Survey {
    /// Returns the number of page tables that Linux counts and that are empty, or lead only to
    /// empty ones. If the process changed during the survey, the number is imprecise, even
    /// negative.
    pub fn empty(&self) -> i64 {
        (self.after.tables / self.geometry.page()) as i64 - self.tables.needed() as i64
    }

    /// Returns whether the memory that Linux reports changed during the survey.
    pub fn changed(&self) -> bool {
        self.before != self.after
    }

    /// Returns the smallest number of page tables that could hold the PTEs of this process, if they
    /// were packed.
    pub fn least(&self) -> u64 {
        let mut tables = self.tables.entries.div_ceil(self.geometry.entries());
        let mut least = tables + self.tables.deposited;
        for level in 1..self.geometry.levels() {
            // Huge PTEs take entries in page tables of their level, beside the entries that lead to
            // lower page tables.
            let huge = self.vmas.iter().filter(|one| self.geometry.level(one.vma.page).max(1) == level);
            tables += huge.map(|one| one.huge).sum::<u64>() / self.geometry.span(level - 1);
            tables = tables.div_ceil(self.geometry.entries());
            least += tables;
        }
        least
    }
}

/// Receives the findings of a survey while it runs.
pub trait Visitor {
    /// Receives pages with equal categories, in ascending order, and the VMA they belong to.
    fn region(&mut self, region: &Region, vma: &Vma) {
        let _ = (region, vma);
    }

    /// Receives an existing last-level page table, in ascending order: the first address that it
    /// spans, and the number of its PTEs that are not none. `None`: a huge PTE is in its place.
    fn table(&mut self, start: u64, entries: Option<u64>) {
        let _ = (start, entries);
    }

    /// Receives the number of VMA bytes that were scanned since the last call.
    fn progress(&mut self, bytes: u64) {
        let _ = bytes;
    }
}

/// A visitor that ignores all findings.
impl Visitor for () {}

/// Options of a survey.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Options {
    /// The method by which empty page tables are found one by one ([`crate::Kernel`]).
    pub detection: Detection,
    /// The share of the addresses to scan, 0 to 1, and the seed of the random choice. `None`: scan
    /// all.
    pub sample: Option<(f64, u64)>,
}

/// The size and error of a sample of spans, each of one second-level page table.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// The number of spans among which the sample was chosen.
    pub stretches: u64,
    /// The number of spans that were scanned.
    pub seen: u64,
    /// The half-width of the 95 % confidence interval of the last-level page tables in use.
    pub error: u64,
}

/// Surveys the pages and page tables of `target`.
///
/// # Errors
/// The process is gone, may not be read, or the pace was interrupted.
pub fn survey(
    target: &Target,
    pagemap: &mut Pagemap,
    pace: &mut Pace<'_>,
    options: &Options,
    visitor: &mut impl Visitor,
) -> Result<Survey, SurveyError> {
    let failed = |error| SurveyError::of(target.pid(), error);
    let before = target.memory()?;
    let vmas = target.vmas()?;
    let geometry = Geometry::of(pagemap.page_size(), vmas.last().map_or(0, |vma| vma.end));
    let mut vmas = vmas.into_iter().map(VmaSurvey::empty).collect::<Vec<_>>();
    let mut counter = Counter::new(geometry);
    let mut walk = Walk { pagemap, pace, visitor, geometry, detection: options.detection, existing: Vec::new() };
    let mut sample = None;
    let mut from = 0;
    if let Some((share, seed)) = options.sample {
        let mut sampled =
            Sampled { share, random: fastrand::Rng::with_seed(seed), sum: Sample::default(), variance: 0.0 };
        for i in 0..vmas.len() {
            let inside = sampled.inside(&vmas[i].vma, geometry);
            if inside.0 < inside.1 {
                walk.vmas(&mut vmas, (from, inside.0), &mut counter).map_err(failed)?;
                let found = sampled.sample(&mut walk, &mut vmas[i], inside);
                counter.tables.add(&found.map_err(failed)?);
                from = inside.1;
            }
        }
        sample = Some(Sample { error: (1.96 * sampled.variance.sqrt()) as u64, ..sampled.sum });
    }
    walk.vmas(&mut vmas, (from, u64::MAX), &mut counter).map_err(failed)?;
    let (lock_times, scanned) = (walk.pace.lock_times(), walk.pagemap.scans());
    let after = target.memory()?;
    Ok(Survey { before, after, geometry, tables: counter.tables, vmas, lock_times, sample, scanned })
}

/// The state of a survey in progress.
struct Walk<'a, 'p, W> {
    pagemap: &'a mut Pagemap,
    pace: &'a mut Pace<'p>,
    visitor: &'a mut W,
    geometry: Geometry,
    detection: Detection,
    existing: Vec<u64>,
}

impl<W: Visitor> Walk<'_, '_, W> {
    /// Surveys the part of `vmas` in `range`. The range begins and ends at a span of a second-level
    /// page table, or where no VMA is.
    fn vmas(&mut self, vmas: &mut [VmaSurvey], range: (u64, u64), counter: &mut Counter) -> Result<(), ScanError> {
        let stretch = TOGETHER * self.geometry.span(1);
        let mut at = range.0;
        let mut first = vmas.partition_point(|one| one.vma.end <= at);
        while at < range.1 && first < vmas.len() && vmas[first].vma.start < range.1 {
            // Start at the next VMA. End at the next multiple of `stretch`, or at the end of the
            // VMAs before it.
            at = at.max(vmas[first].vma.start / self.geometry.span(0) * self.geometry.span(0));
            let end = (at / stretch + 1).saturating_mul(stretch).min(range.1);
            let behind = vmas.partition_point(|one| one.vma.start < end);
            let here = &mut vmas[first..behind];
            let to = here.last().map_or(end, |one| one.vma.end.min(end));
            self.range(here, (at, to), counter)?;
            at = end;
            first += here.iter().take_while(|one| one.vma.end <= end).count();
        }
        Ok(())
    }

    /// Surveys `range`, which the VMAs `vmas` lie in.
    fn range(&mut self, vmas: &mut [VmaSurvey], range: (u64, u64), counter: &mut Counter) -> Result<(), ScanError> {
        let categories = Categories::HUGE | Categories::FILE | Categories::ZERO | Categories::GUARD;
        let mut cursor = 0;
        let geometry = self.geometry;
        self.pagemap.scan(range, &Query::nonempty(Categories::NONEMPTY | categories), self.pace, |region| {
            split(vmas, &mut cursor, region, |one, part| {
                let mapped = one.mapped(&part, geometry);
                one.add(&part, mapped);
                counter.add(&part, mapped);
                self.visitor.region(&part, &one.vma);
            });
        })?;
        self.existing.clear();
        let each = |table| self.existing.push(table);
        match &self.detection {
            Detection::None => {}
            Detection::Exact => self.pagemap.tables(range, self.pace, each)?,
            Detection::ByTime(timing) => self.pagemap.tables_by_time(range, timing, self.pace, each)?,
        }
        let mut cursor = 0;
        for leaf in counter.take((self.detection != Detection::None).then_some(&self.existing[..])) {
            let entries = leaf.table();
            while vmas.get(cursor).is_some_and(|one| one.vma.end <= leaf.start) {
                cursor += 1;
            }
            if let Some(one) = vmas.get_mut(cursor) {
                one.used += u64::from(entries.is_some_and(|entries| entries > 0));
                one.empty += u64::from(entries == Some(0));
            }
            self.visitor.table(leaf.start, entries);
        }
        let scanned = vmas.iter().map(|one| one.vma.end.min(range.1).saturating_sub(one.vma.start.max(range.0)));
        self.visitor.progress(scanned.sum());
        Ok(())
    }
}

/// A stratified random sample. Each large VMA is divided into parts of equal length, and as many
/// spans are chosen at random from each part. Only spans that lie entirely in the VMA count.
struct Sampled {
    share: f64,
    random: fastrand::Rng,
    sum: Sample,
    /// The variance of the estimated number of last-level page tables in use.
    variance: f64,
}

impl Sampled {
    /// Returns the part of a VMA that is sampled: whole spans, or nothing if there are too few.
    fn inside(&self, vma: &Vma, geometry: Geometry) -> (u64, u64) {
        let span = geometry.span(1);
        let inside = (vma.start.next_multiple_of(span), vma.end / span * span);
        let stretches = inside.1.saturating_sub(inside.0) / span;
        // A sample of fewer than `LEAST` spans would have too large an error.
        if stretches as f64 * self.share < LEAST as f64 { (0, 0) } else { inside }
    }

    /// Scans a sample of `range` in a VMA, adds the extrapolated pages to `one`, and returns the
    /// extrapolated page tables.
    fn sample<W: Visitor>(
        &mut self,
        walk: &mut Walk<'_, '_, W>,
        one: &mut VmaSurvey,
        (start, end): (u64, u64),
    ) -> Result<Tables, ScanError> {
        let span = walk.geometry.span(1);
        let stretches = (end - start) / span;
        let seen = ((stretches as f64 * self.share) as u64).clamp(LEAST, stretches);
        let mut counter = Counter::new(walk.geometry);
        let mut part = VmaSurvey::empty(one.vma.clone());
        let (mut sum, mut squares) = (0.0, 0.0);
        for n in 0..seen {
            let (from, to) = (n * stretches / seen, (n + 1) * stretches / seen);
            let at = start + self.random.u64(from..to) * span;
            let before = counter.tables.used[0];
            walk.range(std::slice::from_mut(&mut part), (at, at + span), &mut counter)?;
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
            // Page tables of the highest level are not extrapolated: each spans so many addresses
            // that the sample found it.
            used: [scale(found.used[0]), scale(found.used[1]), found.used[2]],
            leading: [scale(found.leading[0]), scale(found.leading[1]), found.leading[2]],
            deposited: scale(found.deposited),
            empty: found.empty.map(scale),
            occupancy: found.occupancy.map(scale),
            entries: scale(found.entries),
        })
    }
}

/// Splits a region by VMA. Pages outside all VMAs were mapped during the scan, and are left out.
fn split(vmas: &mut [VmaSurvey], cursor: &mut usize, mut region: Region, mut each: impl FnMut(&mut VmaSurvey, Region)) {
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

impl VmaSurvey {
    fn empty(vma: Vma) -> Self {
        VmaSurvey { vma, resident: 0, swapped: 0, huge: 0, zero: 0, used: 0, empty: 0 }
    }

    /// Returns the kind of PTE that maps pages of this VMA.
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
