//! Lines of pesto's callers as steps.

use super::*;

fn request(line: &str) -> Result<Request, String> {
    let words: Vec<OsString> =
        std::iter::once("pesto").chain(line.split_whitespace()).map(OsString::from).collect();
    match wanted(&words) {
        Ok(Wanted::Request(request)) => Ok(request),
        Ok(Wanted::Text(text)) | Err(Refused(text)) => Err(text),
    }
}

fn steps(line: &str) -> Vec<String> {
    let rules = |rules: &[crate::pesto::wire::Rule]| -> String {
        rules.iter().map(|rule| rule.to_string().replace("  =>  ", ">").trim_end().to_owned()).collect()
    };
    let show = |step: &Step| match step {
        Step::Clear(table) => format!("clear {table:?}"),
        Step::Add(table, added) => format!("add {table:?} {}", rules(added)),
        Step::Delete(table, gone) => format!("delete {table:?} {}", rules(gone)),
    };
    request(line).expect(line).steps.iter().map(show).collect()
}

#[test]
fn options_are_steps_in_order() {
    // Podman's and rootlesskit's.
    assert_eq!(
        steps("--add -t 0.0.0.0/8080:80 -t [::]/8080:80 /s"),
        ["add Host TCP [0.0.0.0]:8080>80", "add Host TCP [::]:8080>80"]
    );
    assert_eq!(steps("-A --tcp-ports=::/8080:80 /s"), ["add Host TCP [::]:8080>80"]);
    assert_eq!(
        steps("-D -u 53 -A -T 5432 /s"),
        ["delete Host UDP [*]:53>53", "add Splice TCP [*]%lo:5432>5432"]
    );
    assert_eq!(
        steps("-t 22 -u 53 -T none -C HOST /s"),
        [
            "clear Host",
            "add Host TCP [*]:22>22",
            "add Host UDP [*]:53>53",
            "clear Splice",
            "add Splice ",
            "clear Host"
        ]
    );
    let Request { path, show, steps } = request("/run/s -s").expect("a line");
    assert_eq!((path.to_str(), show, steps), (Some("/run/s"), true, Vec::new()));
}

#[test]
fn refusals_and_texts() {
    for (line, text) in [
        ("", "Usage: pesto "),
        ("/a /b", "Usage: pesto "),
        ("--frobnicate /s", "pesto: unrecognized option '--frobnicate'"),
        ("-A -t abc /s", "Invalid port specifier 'abc'"),
        ("-A -t 0 /s", "Invalid port specifier '0'"),
        ("-C OTHER /s", "Unsupported pif name OTHER"),
        ("--version", "(brodo)"),
        ("--help", "--udp-ns"),
    ] {
        let refusal = request(line).expect_err(line);
        assert!(refusal.contains(text), "{line}: {refusal}");
    }
}
