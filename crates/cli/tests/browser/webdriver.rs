//! A client of WebDriver (W3C), for ChromeDriver and headless Chromium: as little of it as tests of a page
//! need, over a connection for each request.

use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

/// Chromium without a screen, and without connections of its own.
const ARGUMENTS: [&str; 9] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
];

/// Screen or paper of a page.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Screen {
    pub(crate) name: &'static str,
    pub(crate) width: u32,
    pub(crate) is_dark: bool,
    pub(crate) is_paper: bool,
}

/// A browser with one page.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
    profile: PathBuf,
}

impl Browser {
    /// Starts a browser; `None`, with a message, where ChromeDriver or Chromium is not installed.
    pub(crate) fn start(test: &str) -> Option<Self> {
        let driver = Command::new("chromedriver").arg("--port=0").stdout(Stdio::piped()).spawn();
        let Ok(mut driver) = driver else {
            eprintln!("*** SKIPPED: {test}: no chromedriver (Debian: apt install chromium-driver)");
            return None;
        };
        let lines = BufReader::new(driver.stdout.take().expect("a pipe")).lines();
        let port = lines.map_while(Result::ok).find_map(|line| {
            let (_, port) = line.split_once("successfully on port ")?;
            port.trim_end_matches('.').parse().ok()
        });
        let profile = std::env::temp_dir().join(format!("brodo-browser-{}-{test}", std::process::id()));
        fs::create_dir_all(&profile).expect("a directory");
        let port = port.expect("ChromeDriver names its port");
        let mut browser = Self { driver, port, session: String::new(), profile };
        let profile = format!("--user-data-dir={}", browser.profile.display());
        let arguments: Vec<_> = ARGUMENTS.into_iter().chain([profile.as_str()]).collect();
        let wanted = json!({"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": arguments}}}});
        let answer = browser.request("POST", "", &wanted);
        let Some(session) = answer["sessionId"].as_str() else {
            eprintln!("*** SKIPPED: {test}: ChromeDriver starts no browser: {}", answer["message"]);
            return None;
        };
        browser.session = format!("/{session}");
        Some(browser)
    }

    /// Loads a file.
    pub(crate) fn open(&self, file: &Path) {
        let answer = self.request("POST", "/url", &json!({"url": format!("file://{}", file.display())}));
        assert_eq!(answer, Value::Null, "the page is loaded");
    }

    /// Value of a function body in the page.
    pub(crate) fn run(&self, script: &str) -> Value {
        let value = self.request("POST", "/execute/sync", &json!({"script": script, "args": []}));
        assert!(value.get("error").is_none(), "{script}: {value}");
        value
    }

    /// Shows the page on another screen, from its next loading on.
    pub(crate) fn show_on(&self, screen: Screen) {
        let scheme = if screen.is_dark { "dark" } else { "light" };
        let features = [json!({"name": "prefers-color-scheme", "value": scheme})];
        let media = if screen.is_paper { "print" } else { "" };
        self.devtools("Emulation.setEmulatedMedia", &json!({"media": media, "features": features}));
        let mobile = screen.width < 600;
        let metrics = json!({"width": screen.width, "height": 900, "deviceScaleFactor": 1, "mobile": mobile});
        self.devtools("Emulation.setDeviceMetricsOverride", &metrics);
    }

    /// A picture of the whole page in the folder `BRODO_SCREENSHOTS`, if that is set.
    pub(crate) fn screenshot(&self, name: &str) {
        let Some(folder) = std::env::var_os("BRODO_SCREENSHOTS") else { return };
        let size = self.run("const { scrollWidth, scrollHeight } = document.documentElement; return [scrollWidth, scrollHeight]");
        let clip = json!({"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1});
        let wanted = json!({"format": "png", "captureBeyondViewport": true, "clip": clip});
        let answer = self.devtools("Page.captureScreenshot", &wanted);
        let bytes = from_base64(answer["data"].as_str().expect("a picture"));
        fs::write(PathBuf::from(folder).join(format!("{name}.png")), bytes).expect("a file");
    }

    fn devtools(&self, command: &str, parameters: &Value) -> Value {
        self.request("POST", "/goog/cdp/execute", &json!({"cmd": command, "params": parameters}))
    }

    /// The value that a request is answered with, or the error.
    fn request(&self, method: &str, path: &str, body: &Value) -> Value {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("ChromeDriver listens");
        let (body, path) = (body.to_string(), format!("/session{}{path}", self.session));
        let head = format!(
            "{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {}\r\n\r\n",
            body.len()
        );
        stream.write_all(format!("{head}{body}").as_bytes()).expect("a request");
        let mut reader = BufReader::new(stream);
        let (mut line, mut length) = (String::new(), 0);
        while reader.read_line(&mut line).expect("a response") > 2 {
            let lower = line.to_ascii_lowercase();
            if let Some(value) = lower.strip_prefix("content-length:") {
                length = value.trim().parse().expect("a length");
            }
            line.clear();
        }
        let mut body = vec![0; length];
        reader.read_exact(&mut body).expect("a body");
        serde_json::from_slice::<Value>(&body).expect("JSON")["value"].take()
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        if !self.session.is_empty() && !std::thread::panicking() {
            self.request("DELETE", "", &json!({}));
        }
        // Neither matters to a test that has ended.
        let _ = self.driver.kill();
        let _ = self.driver.wait();
        let _ = fs::remove_dir_all(&self.profile);
    }
}

/// Bytes of a text in base64 (RFC 4648, 4).
fn from_base64(text: &str) -> Vec<u8> {
    let digit = |byte: u8| match byte {
        b'A'..=b'Z' => Some(u32::from(byte - b'A')),
        b'a'..=b'z' => Some(u32::from(byte - b'a') + 26),
        b'0'..=b'9' => Some(u32::from(byte - b'0') + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let digits: Vec<u32> = text.bytes().filter_map(digit).collect();
    let bytes = digits.chunks(4).flat_map(|four| {
        let all = four.iter().fold(0, |all, digit| all << 6 | digit) << (6 * (4 - four.len()));
        all.to_be_bytes()[1..four.len()].to_vec()
    });
    bytes.collect()
}
