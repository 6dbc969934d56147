//! `burnformer plot`.

use super::*;
use crate::common::fixtures;

const TOKENS: &str = "5,11,30,7,11,3,19,22,5,11";

/// A folder for pictures.
struct Pictures(TempDir);

impl Pictures {
    fn new() -> Self {
        Self(tempfile::tempdir().expect("a temporary folder"))
    }

    fn path(&self, name: &str) -> String {
        text(&self.0.path().join(name)).to_owned()
    }

    /// Runs `plot` with `arguments` and gives the bytes of the file and what was said of it.
    fn draw(&self, arguments: &[&str], name: &str) -> (Vec<u8>, Value) {
        let path = self.path(name);
        let said = json(&[&["plot"], arguments, &["--out", &path]].concat());
        assert_eq!(said["file"], path.as_str());
        (std::fs::read(&path).expect("the file is there"), said)
    }

    fn svg(&self, arguments: &[&str]) -> String {
        String::from_utf8(self.draw(arguments, "picture.svg").0).expect("UTF-8")
    }

    fn files(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.0.path()).expect("the folder can be read");
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("UTF-8")).collect();
        names.sort();
        names
    }
}

/// Whether some text of the picture is exactly `part`.
#[track_caller]
fn assert_text(svg: &str, part: &str) {
    assert!(svg.contains(&format!("\n{part}\n")), "`{part}` is not in: {svg}");
}

fn bert_with_words() -> String {
    text(&fixtures().join("tasks/bert_words")).to_owned()
}

#[test]
fn a_png_file_has_the_size_that_is_asked_for() {
    let pictures = Pictures::new();
    let (bytes, said) = pictures.draw(&["positions", "--width", "700", "--height", "500"], "positions.png");
    assert_eq!(bytes[..8], *b"\x89PNG\r\n\x1a\n");
    let side = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    assert_eq!((side(16), side(20)), (700, 500));
    assert_eq!((&said["width"], &said["height"]), (&700.into(), &500.into()));
    // What a picture shows is in its pixels.
    let (fewer, _) =
        pictures.draw(&["positions", "--width", "700", "--height", "500", "--positions", "49"], "fewer.PNG");
    assert_ne!(bytes, fewer);
    assert_eq!(pictures.files(), ["fewer.PNG", "positions.png"]);
}

#[test]
fn the_table_of_positions_has_the_size_that_is_asked_for() {
    let pictures = Pictures::new();
    let usual = pictures.svg(&["positions"]);
    for part in ["Sinusoidal positions", "position", "dimension", "value", "-0.5", "45", "60"] {
        assert_text(&usual, part);
    }
    let small = pictures.svg(&["positions", "--positions", "3", "--d-model", "5", "--title", "Five & three"]);
    assert_text(&small, "Five &amp; three");
    let cells = |svg: &str| svg.matches("<rect").count();
    assert!(cells(&usual) > 1500 && cells(&small) < 200, "{} {}", cells(&usual), cells(&small));
}

#[test]
fn attention_is_drawn_with_its_tokens() {
    let pictures = Pictures::new();
    let text = ["--text", "paris is the city of france."];
    let svg =
        pictures.svg(&[&["attention", &bert_with_words(), "--layers", "0,1", "--heads", "0"], &text[..]].concat());
    for part in ["Attention of bert_words", "layer 0, head 0", "layer 1, head 0", "[CLS]", "paris", "attention weight"]
    {
        assert_text(&svg, part);
    }
    // Two panels of ten tokens below each other or side by side: each names its keys.
    assert!(svg.matches("\nparis\n").count() >= 3, "{svg}");
    let llama = checkpoint("llama");
    let llama = ["attention", super::text(&llama), "--tokens", TOKENS];
    let one = pictures.svg(&[&llama[..], &["--heads", "1.4"]].concat());
    assert_text(&one, "layer 1, head 4");
    assert!(!one.contains("\nlayer 0, head 4\n"));
    let other = pictures.svg(&[&llama[..], &["--heads", "1.3"]].concat());
    assert_ne!(one.replace("head 4", ""), other.replace("head 3", ""), "the weights are drawn");
    let all = pictures.svg(&[&llama[..], &["--layers", "1"]].concat());
    (0..6).for_each(|head| assert_text(&all, &format!("layer 1, head {head}")));
    let both = pictures.svg(&[&llama[..], &["--heads", "2"]].concat());
    (0..2).for_each(|layer| assert_text(&both, &format!("layer {layer}, head 2")));
}

#[test]
fn attention_over_a_source_has_its_tokens_across() {
    let pictures = Pictures::new();
    let t5 = checkpoint("t5");
    let cross = pictures.svg(&["attention", text(&t5), "--tokens", "7,8,9", "--heads", "cross.1.2,cross.0.0"]);
    assert_text(&cross, "cross layer 1, head 2");
    let count = |token: &str| cross.matches(&format!("\n{token}\n")).count();
    // The decoder begins with token 0, which the encoder has not read.
    assert!(count("8") > 1 && count("8") == count("7"), "{cross}");
    let mixed = ["plot", "attention", text(&t5), "--tokens", "7,8,9", "--heads", "cross.1.2,0.0", "--out"];
    error(&[&mixed[..], &[&pictures.path("mixed.png")]].concat(), &["different texts"]);
}

#[test]
fn heads_are_drawn_by_role_and_by_score() {
    let pictures = Pictures::new();
    let llama = checkpoint("llama");
    let llama = ["heads", text(&llama), "--tokens", TOKENS];
    let roles = pictures.svg(&llama);
    let found = json(&llama);
    let heads = found["heads"].as_array().expect("a list");
    let mixed = heads.iter().filter(|head| head["role"] == "mixed").count();
    assert!(mixed > 0);
    for part in ["What the heads of llama do", "layer", "head", &format!("mixed ({mixed})")] {
        assert_text(&roles, part);
    }
    let score = |name: &str| pictures.svg(&[&llama[..], &["--score", name]].concat());
    assert_text(&score("entropy"), "share of the largest entropy");
    assert_text(&score("previous_token"), "weight on the previous token");
    assert_ne!(score("first_token"), score("self"));
}

#[test]
fn a_file_that_is_there_is_replaced_whole() {
    let pictures = Pictures::new();
    std::fs::write(pictures.path("old.svg"), "old").expect("written");
    let (bytes, _) = pictures.draw(&["positions", "--positions", "4"], "old.svg");
    assert!(bytes.starts_with(b"<svg"));
    assert_eq!(pictures.files(), ["old.svg"]);
    let quiet = run(&["plot", "positions", "--out", &pictures.path("new.svg"), "--quiet"]);
    assert_eq!((quiet.code, quiet.stdout.as_str(), quiet.stderr.as_str()), (0, "", ""));
}

#[test]
fn what_cannot_be_drawn_is_said() {
    let pictures = Pictures::new();
    let [png, jpeg, none, inside] = ["a.png", "a.jpeg", "a", "no/such/a.png"].map(|name| pictures.path(name));
    for path in [&jpeg, &none] {
        error(&["plot", "positions", "--out", path], &[path.as_str(), ".png or .svg"]);
    }
    error(&["plot", "positions", "--out", &inside], &["there is no folder", "no/such"]);
    std::fs::create_dir(pictures.path("folder.png")).expect("made");
    error(&["plot", "positions", "--out", &pictures.path("folder.png")], &["is a folder"]);
    error(&["plot", "positions"], &["--out"]);
    error(&["plot", "positions", "--out", &png, "--width", "20"], &["200 to 8000"]);
    error(&["plot", "positions", "--out", &png, "--positions", "0"], &["at least 1"]);
    error(&["plot", "positions", "--out", &png, "--positions", "99999999999"], &["more than a picture can show"]);
    let llama = checkpoint("llama");
    let llama = ["plot", "attention", text(&llama), "--tokens", TOKENS, "--out", &png];
    let refused = |rest: &[&str], parts: &[&str]| error(&[&llama[..], rest].concat(), parts);
    refused(&["--layers", "2"], &["no head decoder.2.0", "0 to 1"]);
    refused(&["--heads", "1.0", "--layers", "0"], &["leave out --layers"]);
    refused(&["--heads", "one"], &["--heads", "`one`"]);
    refused(&["--heads", "one.two"], &["`one.two` names no head"]);
    let heads = ["plot", "heads", text(&checkpoint("llama")), "--tokens", TOKENS, "--out", &png].map(str::to_owned);
    let heads: Vec<&str> = heads.iter().map(String::as_str).collect();
    error(&[&heads[..], &["--score", "loudness"]].concat(), &["loudness", "previous_token, next_token"]);
    assert_eq!(pictures.files(), ["folder.png"]);
}

#[test]
fn cost_is_drawn_over_length_with_its_crossover() {
    let pictures = Pictures::new();
    let (_folder, path) = config(&[]);
    let svg = pictures.svg(&["cost", &path, "--lengths", "8,64,512"]);
    for part in
        ["Cost of config", "projections", "attention scores", "feed-forward", "head", "FLOP of a forward", "100"]
    {
        assert_text(&svg, part);
    }
    assert!(!svg.contains("visible pairs"));
    // Projections of 16 × 16 for queries and outputs and 16 × 8 for keys and values, two matrices of 16 × 24 in the
    // network: 1536 weights, over twice the width of all heads.
    assert_text(&svg, "scores overtake weights at 48");
    assert_ne!(svg, pictures.svg(&["cost", &path, "--lengths", "8,64,512", "--batch", "3"]));
    assert_ne!(svg, pictures.svg(&["cost", &path, "--lengths", "8,64,500"]));
    assert_text(&pictures.svg(&["cost", "gemma-2-2b"]), "scores of visible pairs");
    let out = pictures.path("a.svg");
    error(&["plot", "cost", &path, "--lengths", "0", "--out", &out], &["--lengths", "from 1"]);
    error(&["plot", "cost", text(&fixtures().join("tasks/vit")), "--out", &out], &["reads images"]);
}

#[test]
fn gradient_norms_are_drawn_by_layer() {
    let pictures = Pictures::new();
    let (_folder, path) = config(&[]);
    let one = pictures.svg(&["gradients", &path, "--seq", "9"]);
    for part in ["Gradient norms of config", "layer", "gradient norm", "block"] {
        assert_text(&one, part);
    }
    assert_ne!(one, pictures.svg(&["gradients", &path, "--seq", "9", "--seed", "1"]));
    assert_ne!(one, pictures.svg(&["gradients", &path, "--seq", "9", "--log"]));
    let llama = checkpoint("llama");
    let two = pictures.svg(&["gradients", &path, text(&llama), "--seq", "9", "--parts", "down,query"]);
    for part in ["config: down", "config: query", "llama: down", "llama: query", "Gradient norms by layer"] {
        assert_text(&two, part);
    }
    let out = pictures.path("a.svg");
    error(&["plot", "gradients", &path, "--seq", "9", "--parts", "gate", "--out", &out], &["have no gate"]);
    error(&["plot", "gradients", &path, "--seq", "9", "--parts", "quary", "--out", &out], &["did you mean `query`?"]);
    error(&["plot", "gradients", &path, "--seq", "1", "--out", &out], &["at least two tokens"]);
}
