//! The report's JSON is a contract, so its page must explain every field.

use crate::read;

#[test]
fn every_field_of_the_report_is_on_its_page() {
    let page = read("docs/wire.md");
    let page = page.split("## report.json").nth(1).unwrap();
    let verdict = read("health/src/verdict/mod.rs");
    let verdict = verdict.split("pub struct Evidence").nth(1).unwrap();
    let history = read("health/src/report/history.rs");
    let history = history.split("pub struct Record").next().unwrap();
    for source in [
        read("health/src/report/mod.rs"),
        verdict.to_owned(),
        history.to_owned(),
    ] {
        let fields = source
            .lines()
            .filter_map(|line| line.strip_prefix("    pub ")?.split_once(':'))
            .filter(|(name, _)| !name.contains(' ')); // Not the name of a function.
        let names: Vec<&str> = fields.map(|(name, _)| name).collect();
        assert!(names.len() > 3, "no fields found");
        for name in names {
            let told = page.contains(&format!("`{name}`"))
                || page.contains(&format!("`{name}[]`"))
                || page.contains(&format!("{{{name},"))
                || page.contains(&format!(", {name},"))
                || page.contains(&format!(", {name}}}"));
            assert!(told, "docs/wire.md does not explain `{name}`");
        }
    }
}
