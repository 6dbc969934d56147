//! Which head a checkpoint has, and configurations that cannot be.

use burnformer::activation::Activation;
use burnformer::model::ModelConfig;
use burnformer::pretrained::{Checkpoint, Scoring, Task, TaskKind};
use burnformer::task_head::TaskInput;
use serde_json::{Value, json};

use crate::common::flex;
use crate::{changed, folder, open};

fn task(name: &str, edit: impl FnOnce(&mut Value)) -> (Option<TaskInput>, Option<Task>) {
    let copy = changed(name, "config.json", edit);
    let checkpoint = open(copy.path());
    checkpoint.report(&flex()).unwrap_or_else(|error| panic!("{name}: {error}"));
    (checkpoint.config().task.as_ref().map(|task| task.input), checkpoint.task().cloned())
}

fn remove(config: &mut Value, key: &str) {
    config.as_object_mut().expect("an object").shift_remove(key);
}

#[test]
fn the_tensors_tell_which_head_there_is_and_the_class_where_they_do_not() {
    for (name, input, kind) in [
        ("bert_sequences", TaskInput::Pooled, TaskKind::Whole),
        ("bert_tokens", TaskInput::EveryToken, TaskKind::Tokens),
        ("bert_answers", TaskInput::EveryToken, TaskKind::Answer),
        ("roberta_sequences", TaskInput::FirstToken, TaskKind::Whole),
        ("distilbert_sequences", TaskInput::FirstToken, TaskKind::Whole),
        ("distilbert_tokens", TaskInput::EveryToken, TaskKind::Tokens),
        ("llama_sequences", TaskInput::LastToken, TaskKind::Whole),
        ("gpt2_sequences", TaskInput::LastToken, TaskKind::Whole),
        ("vit_images", TaskInput::FirstToken, TaskKind::Whole),
    ] {
        for without_class in [false, true] {
            let found = task(name, |config| {
                if without_class {
                    remove(config, "architectures");
                }
            });
            assert_eq!((found.0, found.1.map(|task| task.kind)), (Some(input), Some(kind)), "{name} {without_class}");
        }
    }
    // The same tensor under another class.
    let class = |name: &'static str| move |config: &mut Value| config["architectures"] = json!([name]);
    assert_eq!(task("bert_sequences", class("BertForTokenClassification")).0, Some(TaskInput::EveryToken));
    // Classes whose heads are something else.
    for other in ["BertForMultipleChoice", "BertModel"] {
        assert_eq!(task("bert_sequences", class(other)), (None, None), "{other}");
    }
    for name in ["vit", "bert_words"] {
        assert_eq!(task(name, |_| ()), (None, None), "{name}");
    }
    let transform = |name: &str| open(&folder(name)).config().task.as_ref().and_then(|task| task.transform);
    assert_eq!(transform("roberta_sequences"), Some(Activation::Tanh));
    assert_eq!(transform("distilbert_sequences"), Some(Activation::Relu));
    assert_eq!(transform("bert_sequences"), None);
}

#[test]
fn labels_have_the_names_of_the_config() {
    let labels = |name: &str, edit: fn(&mut Value)| {
        let task = task(name, edit).1.expect("the model has a task head");
        (task.labels, task.scoring)
    };
    let names = ["negative", "neutral", "positive"].map(str::to_owned).to_vec();
    assert_eq!(labels("bert_sequences", |_| ()), (names, Scoring::OneOf));
    let unnamed = ["LABEL_0", "LABEL_1", "LABEL_2"].map(str::to_owned).to_vec();
    for edit in [
        (|config| remove(config, "id2label")) as fn(&mut Value),
        |config| config["id2label"] = json!({"0": "LABEL_0", "1": "LABEL_1", "2": "LABEL_2"}),
        |config| config["id2label"] = json!({"negative": 0}),
        |config| config["id2label"] = Value::Null,
    ] {
        assert_eq!(labels("bert_sequences", edit), (unnamed.clone(), Scoring::OneOf));
    }
    let numbers = labels("bert_sequences", |config| config["id2label"] = json!({"0": 1, "1": 2, "2": 3}));
    assert_eq!(numbers.0, ["1", "2", "3"]);
    assert_eq!(labels("distilbert_sequences", |_| ()).1, Scoring::EachAlone);
    assert_eq!(labels("gpt2_sequences", |_| ()).1, Scoring::Quantity);
    // One label holds or does not.
    assert_eq!(labels("gpt2_sequences", |config| remove(config, "problem_type")).1, Scoring::EachAlone);

    for edit in [(|config| config["id2label"] = json!({"0": "a", "1": "b"})) as fn(&mut Value), |config| {
        remove(config, "id2label");
        config["num_labels"] = json!(2);
    }] {
        let copy = changed("bert_sequences", "config.json", edit);
        let message = Checkpoint::open(copy.path()).expect_err("another number of labels").to_string();
        assert!(message.contains("`classifier.weight` has 3 rows") && message.contains("2 labels"), "{message}");
    }
}

#[test]
fn keys_of_images_are_read() {
    let read = |name: &str, key: &str, value: Value| {
        let copy = changed(name, "config.json", |config| config[key] = value);
        Checkpoint::open(copy.path()).map(|checkpoint| checkpoint.config().clone()).map_err(|error| error.to_string())
    };
    let patches = |config: ModelConfig| config.patches.expect("the model reads images");
    let config = read("vit_images", "image_size", json!([8, 12])).expect("valid");
    assert_eq!((patches(config.clone()).image_size, config.max_seq_len), ([8, 12], 7));
    assert_eq!(patches(read("vit_images", "patch_size", json!(3)).expect("valid")).patch_size, [3, 3]);
    for (key, value, said) in [
        ("image_size", json!([8, 12, 3]), "`image_size` must be a whole number or two of them"),
        ("image_size", json!("large"), "`image_size` must be a whole number or two of them"),
        ("patch_size", json!(0), "`patches.patch_size` must be at least 1"),
        ("patch_size", json!(13), "has height 13, above the image's height 12"),
        ("num_channels", json!(0), "`patches.channels` must be at least 1"),
        ("pooler_act", json!("relu"), "`pooler_act` `relu` is not supported"),
        ("pooler_output_size", json!(7), "`pooler_output_size` = 7"),
        ("hidden_act", json!("gelu_neww"), "did you mean `gelu_new`?"),
    ] {
        let message = read("vit_images", key, value).expect_err("it is faulty");
        assert!(message.contains(said), "{message}");
    }
    // Another size than that of the positions.
    let copy = changed("vit_images", "config.json", |config| config["image_size"] = json!(16));
    let message = open(copy.path()).report(&flex()).expect_err("it does not fit").to_string();
    assert!(message.contains("position_embeddings` has shape [1, 10, 18] and should have [1, 17, 18]"), "{message}");
}

const CONFIG: &str = r#"
kind = "encoder"
d_model = 12
n_layers = 1
max_seq_len = 7
pooler = true
[patches]
image_size = [8, 12]
patch_size = [4, 4]
[positions.learned]
[attention]
n_heads = 3
[feed_forward]
d_ff = 16
[task]
input = "pooled"
n_labels = 3
"#;

#[test]
fn faults_of_patches_and_heads_are_named() {
    ModelConfig::from_toml(CONFIG).unwrap_or_else(|error| panic!("{error}"));
    for (from, to, said) in [
        (
            "max_seq_len = 7",
            "max_seq_len = 6",
            "`max_seq_len` must be 7, one for each patch and one for the class token",
        ),
        ("\"encoder\"", "\"decoder\"", "`kind` must be `encoder`"),
        ("[positions.learned]", "[positions.learned]\noffset = 2", "`positions` of patches are learned without offset"),
        (
            "[positions.learned]",
            "[embedding]\nvocab_size = 5",
            "`patches` are what a model reads in place of token ids",
        ),
        ("patch_size = [4, 4]", "patch_size = [4]", "`patches.patch_size` has a wrong value"),
        ("patch_size = [4, 4]", "", "`patches.patch_size` is missing"),
        ("patch_size", "patch_sizes", "`patches.patch_sizes` is no key here, did you mean `patch_size`?"),
        ("image_size = [8, 12]", "image_size = [8, 3]", "has width 4, above the image's width 3"),
        ("pooler = true", "", "`task.input` is `pooled`, and the model has no `pooler`"),
        ("\"pooled\"", "\"last\"", "`task.input` cannot be `last`, did you mean `last_token`?"),
        ("n_labels = 3", "n_labels = 0", "`task.n_labels` must be at least 1"),
        ("n_labels = 3", "n_labels = 3\npadding_id = 1", "`task.padding_id` is for a head that reads the last token"),
    ] {
        assert!(CONFIG.contains(from), "{from}");
        let message = ModelConfig::from_toml(&CONFIG.replace(from, to)).expect_err("it is faulty").to_string();
        assert!(message.contains(said), "{message}");
    }
}
