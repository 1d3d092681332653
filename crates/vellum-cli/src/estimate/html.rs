//! The estimate as an article of a web page.

use maud::{Markup, html};

use super::{Estimate, show};

/// Returns the article.
pub fn article(estimate: &Estimate) -> Markup {
    let rows = show::cells(estimate);
    html! {
        article {
            h3 { "What it costs" }
            div.scroll { table {
                // Leave the first column's heading empty: the article has it as its title.
                thead { tr { th { "" } @for name in &rows[0][1..] { th { (name) } } } }
                tbody { @for row in &rows[1..] {
                    tr { th { (row[0]) } td.name { (row[1]) } @for cell in &row[2..] { td { (cell) } } }
                } }
            } }
            @for text in show::notes(estimate) { p { (text) } }
        }
    }
}
