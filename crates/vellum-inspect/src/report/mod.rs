//! The report: what an inspection found, in each form it is written in.
//!
//! | module | contents |
//! |---|---|
//! | `text` | the report for a terminal |
//! | `map` | the address space as a map of last-level page tables |
//! | `folios` | contiguity and TLB entries, for a terminal |
//! | `json` | one JSON object, which `--diff` reads again |
//! | [`table`] | tables, paragraphs and numbers for a terminal |
//! | [`page`] | the frame of a self-contained web page |
//! | `html` | the web page of an inspection |

pub(crate) mod folios;
pub(crate) mod html;
pub(crate) mod json;
pub(crate) mod map;
pub mod page;
pub mod table;
pub(crate) mod text;
