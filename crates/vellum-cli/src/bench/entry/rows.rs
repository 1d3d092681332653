//! Results, and their JSON.

use serde_json::{Map, Value, json};
use vellum_linux::child::entry;
use vellum_linux::stats::Summary;
use vellum_linux::workload::case::{Case, Op};

use crate::bench::contender::Skip;
use crate::bench::engine::Entries;
use crate::bench::load::Load;

/// An event that costs time on hardware and none in a simulated machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// A system call that does nothing.
    Call,
    /// A `munmap` where nothing is mapped.
    UnmapEmpty,
    /// A page fault with the least work.
    Exception,
    /// A TLB flush on the calling CPU.
    Flush,
    /// The flush of another CPU's TLB besides.
    Ipi,
}

impl Event {
    /// All events, in order.
    pub const ALL: [Event; 5] = [Event::Call, Event::UnmapEmpty, Event::Exception, Event::Flush, Event::Ipi];

    /// Returns the name in JSON and in tables.
    pub fn name(self) -> &'static str {
        match self {
            Event::Call => "call",
            Event::UnmapEmpty => "munmap-empty",
            Event::Exception => "exception",
            Event::Flush => "flush",
            Event::Ipi => "ipi",
        }
    }

    /// Returns the description in tables.
    pub fn description(self) -> &'static str {
        match self {
            Event::Call => "a system call that does nothing: getppid",
            Event::UnmapEmpty => "munmap of a page where nothing is mapped",
            Event::Exception => "the page fault with the least work: a read that maps the zero page",
            Event::Flush => "a TLB flush of one page on this CPU",
            Event::Ipi => "the addition if another CPU runs a thread of the same process",
        }
    }

    /// Returns the nanoseconds of the event in a run; `None` if the run could not measure it.
    pub fn of(self, costs: &entry::Costs) -> Option<u64> {
        match self {
            Event::Call => Some(costs.call_ns),
            Event::UnmapEmpty => Some(costs.unmap_empty_ns),
            Event::Exception => Some(costs.exception_ns),
            Event::Flush => Some(costs.flush_ns),
            Event::Ipi => costs.ipi_ns,
        }
    }
}

/// The cost of an event on Linux.
#[derive(Clone, Debug)]
pub struct Cost {
    /// The event.
    pub event: Event,
    /// Its nanoseconds in the runs, or the reason why there are none.
    pub ns: Result<Summary, Skip>,
    /// The other work on the machine meanwhile.
    pub load: Load,
}

/// The costs of all events, in the order of [`Event::ALL`].
#[derive(Clone, Debug)]
pub struct Costs(pub [Cost; Event::ALL.len()]);

impl Costs {
    /// Returns the cost of an event, if it was measured.
    pub fn ns(&self, event: Event) -> Option<Summary> {
        self.0.iter().find(|cost| cost.event == event).and_then(|cost| cost.ns.clone().ok())
    }

    /// Returns the cost of all events of an operation, on the CPU that does it or, with `ipi`, with
    /// another CPU that runs a thread of the same address space.
    fn of(&self, entries: &Entries, ipi: bool) -> Option<Summary> {
        let flushes = |event| (entries.flushes, event);
        let events = [(entries.calls, Event::Call), (entries.exceptions, Event::Exception), flushes(Event::Flush)];
        let ipis = (ipi && entries.flushes > 0).then(|| flushes(Event::Ipi));
        let zero = Summary { median: 0, min: 0, max: 0 };
        events.into_iter().chain(ipis).try_fold(zero, |sum, (count, event)| {
            let one = self.ns(event)?;
            Some(Summary {
                median: sum.median + count * one.median,
                min: sum.min + count * one.min,
                max: sum.max + count * one.max,
            })
        })
    }
}

impl Cost {
    /// Returns the row as one JSON object; `skipped` appears only with a reason.
    pub fn json(&self) -> Value {
        let mut json = Map::new();
        json.insert("bench".into(), "entry".into());
        json.insert("op".into(), self.event.name().into());
        json.insert("linux_ns".into(), json!(self.ns.as_ref().ok().map(|ns| ns.median)));
        json.insert("min".into(), json!({ "linux_ns": self.ns.as_ref().ok().map(|ns| ns.min) }));
        json.insert("max".into(), json!({ "linux_ns": self.ns.as_ref().ok().map(|ns| ns.max) }));
        json.insert("others".into(), json!(self.load.others));
        json.insert("stolen".into(), json!(self.load.stolen));
        if let Err(skip) = &self.ns {
            json.insert("skipped".into(), json!({ "linux_ns": skip.to_string() }));
        }
        json.into()
    }
}

/// The events of an operation of the engine, and the time that they would add.
#[derive(Clone, Debug)]
pub struct Added {
    /// The operation.
    pub op: Op,
    /// The region.
    pub case: Case,
    /// The figures, or the reason why there are none.
    pub figures: Result<Figures, Skip>,
    /// The other work on the machine meanwhile.
    pub load: Load,
}

/// The figures of an [`Added`].
#[derive(Clone, Copy, Debug)]
pub struct Figures {
    /// The events of the last run.
    pub entries: Entries,
    /// The engine's nanoseconds, without the events.
    pub vellum: Summary,
    /// The nanoseconds that the events would add, if their costs are known.
    pub added: Option<Summary>,
    /// The same if another CPU runs a thread of the address space.
    pub added_ipi: Option<Summary>,
}

impl Figures {
    /// Returns the engine's nanoseconds with those that the events would add.
    fn whole(&self) -> Option<Summary> {
        let (vellum, added) = (self.vellum, self.added?);
        Some(Summary { median: vellum.median + added.median, min: vellum.min + added.min, max: vellum.max + added.max })
    }
}

impl Added {
    /// Makes the row of the engine's runs.
    pub fn new(op: Op, case: Case, runs: Result<Vec<Entries>, Skip>, costs: &Costs, load: Load) -> Added {
        let figures = runs.and_then(|runs| {
            let times: Vec<u64> = runs.iter().map(|entries| entries.time.cpu_ns).collect();
            let (Some(vellum), Some(&entries)) = (Summary::of(&times), runs.last()) else {
                return Err(Skip::Missing("run of the engine"));
            };
            let (added, added_ipi) = (costs.of(&entries, false), costs.of(&entries, true));
            Ok(Figures { entries, vellum, added, added_ipi })
        });
        Added { op, case, figures, load }
    }

    /// Returns the row as one JSON object; `skipped` appears only with a reason.
    pub fn json(&self) -> Value {
        let figures = self.figures.as_ref().ok();
        let entries = figures.map(|figures| figures.entries);
        let times = |pick: fn(Summary) -> u64| -> Map<String, Value> {
            let of = |summary: Option<Summary>| json!(summary.map(pick));
            [
                ("vellum_ns".into(), of(figures.map(|figures| figures.vellum))),
                ("added_ns".into(), of(figures.and_then(|figures| figures.added))),
                ("added_ipi_ns".into(), of(figures.and_then(|figures| figures.added_ipi))),
                ("whole_ns".into(), of(figures.and_then(Figures::whole))),
            ]
            .into_iter()
            .collect()
        };
        let mut json = Map::new();
        json.insert("bench".into(), "entry".into());
        json.insert("op".into(), self.op.name().into());
        json.insert("folio_kib".into(), self.case.folio_kib.into());
        json.insert("huge".into(), self.case.huge.into());
        json.insert("bytes".into(), self.case.bytes.into());
        json.insert("calls".into(), json!(entries.map(|entries| entries.calls)));
        json.insert("exceptions".into(), json!(entries.map(|entries| entries.exceptions)));
        json.insert("flushes".into(), json!(entries.map(|entries| entries.flushes)));
        json.extend(times(|summary| summary.median));
        json.insert("min".into(), times(|summary| summary.min).into());
        json.insert("max".into(), times(|summary| summary.max).into());
        json.insert("others".into(), json!(self.load.others));
        json.insert("stolen".into(), json!(self.load.stolen));
        if let Err(skip) = &self.figures {
            json.insert("skipped".into(), json!({ "vellum_ns": skip.to_string() }));
        }
        json.into()
    }
}

#[cfg(test)]
pub mod tests {
    use vellum_linux::time::Time;

    use super::*;

    /// Costs of 1, 10, 100, … ns, each from half of that to twice that; the last was not measured.
    pub fn costs() -> Costs {
        let mut ns = 1;
        Costs(Event::ALL.map(|event| {
            let summary = Summary { median: ns, min: ns / 2, max: 2 * ns };
            ns *= 10;
            let measured = if event == Event::Ipi { Err(Skip::Missing("second CPU")) } else { Ok(summary) };
            Cost { event, ns: measured, load: Load::default() }
        }))
    }

    /// A run of the engine.
    pub fn entries(cpu_ns: u64) -> Entries {
        Entries { time: Time { wall_ns: cpu_ns + 1, cpu_ns }, calls: 1, exceptions: 20, flushes: 3 }
    }

    #[test]
    fn the_events_of_an_operation_add_their_costs() {
        let mut costs = costs();
        let of = |costs: &Costs, ipi| costs.of(&entries(7), ipi);
        let added = Summary { median: 1 + 20 * 100 + 3 * 1000, min: 20 * 50 + 3 * 500, max: 2 + 20 * 200 + 3 * 2000 };
        assert_eq!(of(&costs, false), Some(added));
        assert_eq!(of(&costs, true), None, "the cost of an interrupt is not known");
        costs.0[4].ns = Ok(Summary { median: 10_000, min: 5_000, max: 20_000 });
        assert_eq!(of(&costs, true).map(|added| added.median), Some(5001 + 3 * 10_000));
    }

    #[test]
    fn the_json_of_rows_has_these_keys_and_no_others() {
        let costs = costs();
        let json = [&costs.0[1], &costs.0[4]].map(Cost::json);
        let expected = [
            json!({
                "bench": "entry", "op": "munmap-empty", "linux_ns": 10,
                "min": { "linux_ns": 5 }, "max": { "linux_ns": 20 }, "others": 0.0, "stolen": 0.0,
            }),
            json!({
                "bench": "entry", "op": "ipi", "linux_ns": null,
                "min": { "linux_ns": null }, "max": { "linux_ns": null }, "others": 0.0, "stolen": 0.0,
                "skipped": { "linux_ns": "this kernel has no second CPU" },
            }),
        ];
        assert_eq!(json, expected);
        let runs = Ok(vec![entries(8), entries(6), entries(7)]);
        let row = Added::new(Op::Munmap, Case::of(2 << 20, 64), runs, &costs, Load::default());
        let expected = json!({
            "bench": "entry", "op": "munmap", "folio_kib": 64, "huge": false, "bytes": 2 << 20,
            "calls": 1, "exceptions": 20, "flushes": 3,
            "vellum_ns": 7, "added_ns": 5001, "added_ipi_ns": null, "whole_ns": 5008,
            "min": { "vellum_ns": 6, "added_ns": 2500, "added_ipi_ns": null, "whole_ns": 2506 },
            "max": { "vellum_ns": 8, "added_ns": 10_002, "added_ipi_ns": null, "whole_ns": 10_010 },
            "others": 0.0, "stolen": 0.0,
        });
        assert_eq!(row.json(), expected);
        let row = Added::new(Op::Munmap, Case::of(2 << 20, 64), Err(Skip::Busy), &costs, Load::default());
        assert_eq!(row.json()["skipped"]["vellum_ns"], Skip::Busy.to_string());
    }
}
