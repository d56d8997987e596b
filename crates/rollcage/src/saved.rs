//! A rollout saved as one HTML file, which opens without a server and asks nobody for anything: the viewer's script and
//! style, and the API's own answers about the rollout.
//!
//! The answers are compressed, and in base64, so that nothing an agent wrote is ever parsed as HTML. Scripts and styles
//! other than the viewer's are forbidden by their hashes.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::io::{self, Write};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::GzEncoder;
use jiff::Timestamp;
use serde::Serialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use rollcage_engine::store::{Store, StoreError, read_tail};
use rollcage_model::browse::Reading;
use rollcage_model::browse::saved::NewPrompt;
use rollcage_model::browse::tokens::Part;
use rollcage_model::browse::transcript::Conversation;
use rollcage_model::browse::turn::MessageRange;
use rollcage_model::record::RolloutResult;
use rollcage_model::view::View;

/// Of the format below; the viewer reads no other.
const VERSION: u32 = 1;
/// Of all answers together, before they are compressed. A browser cannot open what is much longer.
const ANSWERS_BYTES_MAX: usize = 512 << 20;
/// Of a log only the end is saved.
const LOG_BYTES_MAX: u64 = 64 << 10;
/// As the API names them, and as the record does.
const LOGS: [(&str, &str); 2] = [
    ("agent", "agent.stdout.log"),
    ("agent_stderr", "agent.stderr.log"),
];

#[derive(Debug, thiserror::Error)]
pub(crate) enum SaveError {
    #[error(
        "this build has no pages: build them (`npm ci && npm run build` in ui/), then the program again"
    )]
    NoViewer,
    #[error("the viewer's {0} cannot stand inside a page")]
    Viewer(&'static str),
    #[error("the rollout is too large for one page; `rollcage export` writes all of it")]
    TooLarge,
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("write the page")]
    Json(#[from] serde_json::Error),
    #[error("write the page")]
    Write(#[from] io::Error),
}

/// What shows a saved rollout.
pub(crate) struct Viewer {
    pub(crate) script: Cow<'static, [u8]>,
    pub(crate) style: Cow<'static, [u8]>,
}

impl Viewer {
    /// Of files that the build of the pages made, which are not there in every build.
    pub(crate) fn new(
        file: impl Fn(&str) -> Option<Cow<'static, [u8]>>,
    ) -> Result<Self, SaveError> {
        let file = |name: &str| file(name).ok_or(SaveError::NoViewer);
        Ok(Viewer {
            script: file("saved.js")?,
            style: file("saved.css")?,
        })
    }
}

/// An ended rollout with all that is saved of it.
pub(crate) struct Saving<'a> {
    pub(crate) store: &'a Store,
    pub(crate) result: &'a RolloutResult,
    pub(crate) reading: &'a Reading,
    /// More of the API's answers, by what follows the rollout's address.
    pub(crate) others: &'a [(&'static str, Value)],
}

/// What the file holds. Answers are named by their addresses without host, prefix and page.
#[derive(Serialize)]
struct Saved {
    version: u32,
    rollout_id: String,
    saved_at: f64,
    program: String,
    answers: BTreeMap<String, Box<RawValue>>,
    /// How long they are together.
    #[serde(skip)]
    answers_bytes: usize,
    /// Answers that are the same as another one.
    same: BTreeMap<String, String>,
    /// What each answer about a transcript has of the rollout's conversations.
    conversations: Vec<Conversation>,
    /// By call.
    prompts: Vec<Option<NewPrompt>>,
    /// Each list of tools that was offered, once.
    tool_lists: Vec<Value>,
    /// By call: which of these.
    tools: Vec<Option<usize>>,
}

/// Writes the page.
pub(crate) fn write(
    saving: &Saving<'_>,
    viewer: &Viewer,
    out: &mut impl Write,
) -> Result<(), SaveError> {
    let script = inline(&viewer.script, &["</script", "<!--"], "script")?;
    let style = inline(&viewer.style, &["</style"], "style")?;
    let policy = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src data:; base-uri 'none'; \
         form-action 'none'",
        hash(script),
        hash(style)
    );
    let title = escaped(&saving.result.task_id);
    write!(
        out,
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta http-equiv=\"Content-Security-Policy\" content=\"{policy}\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <title>{title} · Rollcage</title>\n<style>{style}</style>\n</head>\n<body>\n<div id=\"app\"></div>\n\
         <script type=\"application/json\" id=\"saved\">"
    )?;
    let mut packed = GzEncoder::new(
        EncoderWriter::new(&mut *out, &STANDARD),
        Compression::best(),
    );
    serde_json::to_writer(&mut packed, &saving.saved()?)?;
    packed.finish()?.finish()?;
    write!(
        out,
        "</script>\n<script>{script}</script>\n</body>\n</html>\n"
    )?;
    Ok(())
}

/// A text that does not end the element that it stands in.
fn inline<'a>(bytes: &'a [u8], ends: &[&str], what: &'static str) -> Result<&'a str, SaveError> {
    let text = std::str::from_utf8(bytes).map_err(|_| SaveError::Viewer(what))?;
    let lower = text.to_ascii_lowercase();
    match ends.iter().any(|end| lower.contains(end)) {
        true => Err(SaveError::Viewer(what)),
        false => Ok(text),
    }
}

fn hash(text: &str) -> String {
    STANDARD.encode(Sha256::digest(text))
}

/// Without what HTML or a reading direction is made of.
fn escaped(text: &str) -> String {
    let is_plain = |letter: &char| {
        let is_direction = matches!(letter, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
        !letter.is_control() && !is_direction
    };
    let mut out = String::new();
    for letter in text.chars().filter(is_plain) {
        match letter {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            _ => out.push(letter),
        }
    }
    out
}

impl Saving<'_> {
    fn saved(&self) -> Result<Saved, SaveError> {
        let reading = self.reading;
        let turns = 0..reading.n_turns();
        let mut saved = Saved {
            version: VERSION,
            rollout_id: self.result.rollout_id.to_string(),
            saved_at: Timestamp::now().as_millisecond() as f64 / 1000.0,
            program: concat!("rollcage ", env!("CARGO_PKG_VERSION")).to_owned(),
            answers: BTreeMap::new(),
            answers_bytes: 0,
            same: BTreeMap::new(),
            conversations: Vec::new(),
            prompts: turns.clone().map(|turn| reading.new_prompt(turn)).collect(),
            tool_lists: Vec::new(),
            tools: Vec::new(),
        };
        let mut result =
            serde_json::to_value(View::bare(&reading.interpretation().complete(self.result)))?;
        result["status"] = json!("ended");
        saved.add("", &result)?;
        self.add_files(&mut saved)?;
        saved.add("/figures", &reading.figures(Some(self.result)))?;
        saved.add("/turns", &reading.turns(0, usize::MAX))?;
        saved.add("/graph", &reading.graph(0, usize::MAX))?;
        for turn in turns {
            saved.add_turn(reading, turn)?;
        }
        saved.add_words(reading)?;
        Ok(saved)
    }

    /// What the record has beside result and calls. What is missing there is missing in the page.
    fn add_files(&self, saved: &mut Saved) -> Result<(), SaveError> {
        let id = self.result.rollout_id;
        for (name, answer) in self.others {
            saved.add(&format!("/{name}"), answer)?;
        }
        if let Some(task) = self.store.task(id)? {
            saved.add("/task", &task)?;
        }
        let directory = self.store.directory(id);
        for (name, file) in LOGS {
            if let Ok(text) = read_tail(&directory.join(file), LOG_BYTES_MAX) {
                saved.add(&format!("/logs?name={name}"), &text)?;
            }
        }
        Ok(())
    }
}

impl Saved {
    /// Adds an answer, by what follows the rollout's own address.
    fn add(&mut self, name: &str, answer: &impl Serialize) -> Result<(), SaveError> {
        let key = self.key(name);
        let answer = to_raw_value(answer)?;
        self.answers_bytes += answer.get().len();
        if self.answers_bytes > ANSWERS_BYTES_MAX {
            return Err(SaveError::TooLarge);
        }
        self.answers.insert(key, answer);
        Ok(())
    }

    fn key(&self, name: &str) -> String {
        format!("v1/rollouts/{}{name}", self.rollout_id)
    }

    fn add_turn(&mut self, reading: &Reading, turn: usize) -> Result<(), SaveError> {
        let Some(mut detail) = reading.detail(turn, MessageRange::New) else {
            return Ok(());
        };
        let tools = detail.tools.take().map(|tools| {
            let mut known = self.tool_lists.iter();
            known.position(|known| *known == tools).unwrap_or_else(|| {
                self.tool_lists.push(tools);
                self.tool_lists.len() - 1
            })
        });
        self.tools.push(tools);
        let mut answer = serde_json::to_value(&detail)?;
        if let Some(members) = answer.as_object_mut() {
            members.remove("tools");
        }
        self.add(&format!("/turns/{turn}"), &answer)?;
        let tokens = reading.tokens(turn, Part::Completion, 0, usize::MAX);
        match tokens.filter(|page| page.total > 0) {
            Some(page) => self.add(&format!("/turns/{turn}/tokens?part=completion"), &page),
            None => Ok(()),
        }
    }

    fn add_words(&mut self, reading: &Reading) -> Result<(), SaveError> {
        let Some(mut own) = reading.whole_transcript(None) else {
            return Ok(());
        };
        self.conversations = std::mem::take(&mut own.conversations);
        let name = |root: usize| format!("/transcript?conversation={root}");
        let roots: Vec<_> = self.conversations.iter().map(|it| it.root).collect();
        for root in roots.into_iter().filter(|root| Some(*root) != own.root) {
            if let Some(mut other) = reading.whole_transcript(Some(root)) {
                other.conversations.clear();
                self.add(&name(root), &other)?;
            }
        }
        match own.root {
            Some(root) => {
                let key = self.key("/transcript");
                self.same.insert(key, self.key(&name(root)));
                self.add(&name(root), &own)
            }
            None => self.add("/transcript", &own),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use flate2::read::GzDecoder;
    use rollcage_model::id::RolloutId;
    use rollcage_model::task::Task;
    use rollcage_model::trace::Facts;

    use super::*;

    fn viewer(script: &str, style: &str) -> Viewer {
        Viewer {
            script: script.as_bytes().to_vec().into(),
            style: style.as_bytes().to_vec().into(),
        }
    }

    fn golden() -> Reading {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/opencode.rec");
        let bytes = std::fs::read(path).unwrap();
        Reading::new(bytes.into(), &Facts::default(), false)
    }

    fn page(result: &RolloutResult, viewer: &Viewer) -> Result<String, SaveError> {
        let home = tempfile::tempdir().unwrap();
        let store = Store::open(home.path()).unwrap();
        let directory = store.directory(result.rollout_id);
        std::fs::create_dir_all(&directory).unwrap();
        let task = Task {
            instruction: "</script><script>alert(1)</script>".to_owned(),
            ..Task::default()
        };
        std::fs::write(directory.join("task.json"), json!(task).to_string()).unwrap();
        std::fs::write(directory.join("agent.stdout.log"), "<b>\u{1b}[31mred").unwrap();
        let reading = golden();
        let saving = Saving {
            store: &store,
            result,
            reading: &reading,
            others: &[("network", json!({"total": 0}))],
        };
        let mut out = Vec::new();
        write(&saving, viewer, &mut out)?;
        Ok(String::from_utf8(out).unwrap())
    }

    fn between<'a>(text: &'a str, start: &str, end: &str) -> &'a str {
        text.split_once(start).unwrap().1.split_once(end).unwrap().0
    }

    fn data_of(page: &str) -> Value {
        let packed = between(page, "id=\"saved\">", "<");
        let packed = STANDARD.decode(packed).unwrap();
        let mut text = String::new();
        GzDecoder::new(&packed[..])
            .read_to_string(&mut text)
            .unwrap();
        serde_json::from_str(&text).unwrap()
    }

    fn result() -> RolloutResult {
        let id = RolloutId::generate();
        RolloutResult {
            task_id: "<b>\u{202e}a & b".to_owned(),
            ..rollcage_engine::result::begin_abandoned(id, Task::default())
        }
    }

    #[test]
    fn a_page_holds_the_answers_and_nothing_of_them_is_html() {
        let page = page(&result(), &viewer("run()", "a{}")).unwrap();
        assert_eq!(
            between(&page, "<title>", "</title>"),
            "&lt;b&gt;a &amp; b · Rollcage"
        );
        assert_eq!(page.matches("<script").count(), 2);
        let data = data_of(&page);
        let one = format!("v1/rollouts/{}", data["rollout_id"].as_str().unwrap());
        let answer = |name: &str| &data["answers"][format!("{one}{name}")];
        let reading = golden();
        assert_eq!(answer("")["status"], "ended");
        assert!(
            answer("/task")["instruction"]
                .as_str()
                .unwrap()
                .contains("alert")
        );
        assert_eq!(answer("/network"), &json!({"total": 0}));
        assert_eq!(answer("/logs?name=agent"), "<b>\u{1b}[31mred");
        assert!(answer("/logs?name=agent_stderr").is_null());
        let turns = answer("/turns")["turns"].as_array().unwrap();
        assert_eq!(turns.len(), reading.n_turns());
        assert_eq!(answer("/figures"), &json!(reading.figures(Some(&result()))));
        for turn in 0..turns.len() {
            let mut detail = json!(reading.detail(turn, MessageRange::New));
            let tools = detail.as_object_mut().unwrap().remove("tools");
            assert_eq!(answer(&format!("/turns/{turn}")), &detail);
            let list = data["tools"][turn].as_u64();
            let list = list.map(|list| data["tool_lists"][list as usize].clone());
            assert_eq!(list.unwrap_or_default(), tools.unwrap_or_default());
        }
        let same = data["same"][format!("{one}/transcript")].as_str().unwrap();
        let mut transcript = data["answers"][same].clone();
        transcript["conversations"] = data["conversations"].clone();
        assert_eq!(transcript, json!(reading.whole_transcript(None)));
    }

    #[test]
    fn only_the_viewers_own_code_runs() {
        let page = page(&result(), &viewer("run()", "a{}")).unwrap();
        let policy = between(&page, "Content-Security-Policy\" content=\"", "\"");
        // `printf 'run()' | openssl dgst -sha256 -binary | base64`, and the same of `a{}`.
        let expected = "default-src 'none'; script-src 'sha256-AvyuiL0SD1mVY3NNxR+V2uo+lhk6RMFrytWmRt6CrJQ='; style-src 'sha256-X1RutGBrXCt9KkSaXMK7tHftWiRscFHOhxsS8tv8hBk='; img-src data:; base-uri 'none'; form-action 'none'";
        assert_eq!(policy, expected);
        for bad in [
            viewer("'</SCRIPT>'", ""),
            viewer("'<!--'", ""),
            viewer("", "</style>"),
        ] {
            assert!(matches!(
                self::page(&result(), &bad),
                Err(SaveError::Viewer(_))
            ));
        }
        assert!(matches!(Viewer::new(|_| None), Err(SaveError::NoViewer)));
    }
}
