//! `paceline inject-manifest`: injects Paceline into manifests as the webhook does, but without a webhook.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context as _;
use clap::builder::NonEmptyStringValueParser;
use clap::{Args, ValueEnum};
use paceline_inject::manifest::{Template, templates};
use paceline_inject::{Identity, Injected, Mode, Settings, inject, patch, remediator};
use serde_json::{Value, json};

use super::tell;
use super::yaml::{self, Node};
use crate::output::{self, Color, Style, warning};

/// Maximum size of a manifest in bytes, far more than real ones have.
const MOST_BYTES: u64 = 64 << 20;

/// `paceline inject-manifest`.
#[derive(Debug, Args)]
#[command(
    after_help = "Reads Pods, Jobs, CronJobs, PyTorchJobs, JobSets, LeaderWorkerSets, Volcano Jobs, RayJobs, RayClusters, training \
runtimes and Lists; other documents pass through unchanged. Annotations of the pod templates (paceline.dev/...) are followed, as by \
the webhook: docs/kubernetes.md.\n\nExit codes: 0 if something was injected or already was, 1 if nothing could be.\n\n\
Example: paceline inject-manifest -f job.yaml | kubectl apply -f -"
)]
pub(crate) struct ManifestArgs {
    /// The manifest: YAML or JSON with any number of documents; "-" is standard input. May be repeated.
    #[arg(short, long, required = true, value_name = "FILE")]
    filename: Vec<PathBuf>,
    /// Output format.
    #[arg(short, long, value_enum, default_value_t, value_name = "FORMAT")]
    output: Format,
    /// Injection mode of pods whose annotations do not set it.
    #[arg(long, value_enum, default_value_t, value_name = "MODE")]
    mode: ModeArg,
    /// The image with the program [default: that of this version].
    #[arg(long, env = "PACELINE_IMAGE", value_name = "IMAGE", value_parser = NonEmptyStringValueParser::new())]
    image: Option<String>,
    /// URL of the cluster's remediator, such as https://paceline-remediator.paceline.svc/verdicts; pods report
    /// findings about nodes to it.
    #[arg(long, value_name = "https://HOST/PATH", value_parser = remediator)]
    remediator: Option<String>,
    /// Print the differences instead of the manifest.
    #[arg(long, conflicts_with = "output")]
    diff: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
enum Format {
    /// The whole manifest.
    #[default]
    Yaml,
    /// The whole manifest as JSON, one document after another.
    Json,
    /// One JSON patch per changed document, one per line.
    Patch,
}

#[derive(Clone, Copy, Debug, Default, ValueEnum)]
enum ModeArg {
    /// A container next to the trainer's.
    #[default]
    Sidecar,
    /// `paceline run` in front of the container's command.
    Wrap,
}

/// A document, and the result of injecting into it.
struct Worked {
    before: Node,
    after: Node,
    patch: Vec<Value>,
    /// The name of the object, such as "Job/train".
    name: String,
    /// True if the document has pods into which nothing could be injected.
    is_refused: bool,
}

/// Injects Paceline and prints the manifest.
pub(crate) fn command(args: &ManifestArgs, color: Color) -> anyhow::Result<ExitCode> {
    let style = Style::stderr(color);
    let mut settings = Settings {
        mode: match args.mode {
            ModeArg::Sidecar => Mode::Sidecar,
            ModeArg::Wrap => Mode::Wrap,
        },
        remediator: args.remediator.clone(),
        ..Settings::default()
    };
    if let Some(image) = &args.image {
        settings.image.clone_from(image);
    }
    let (mut all, mut injected, mut has_comments) = (Vec::new(), 0, false);
    for path in &args.filename {
        let name = path.display().to_string();
        let text = read(path).with_context(|| name.clone())?;
        has_comments |= tell::has_comments(&text);
        let documents = yaml::read(&text).map_err(|problem| anyhow::anyhow!("{name}:{problem}"))?;
        for (number, document) in documents.into_iter().enumerate() {
            let place = format!("{name}:{}: document {}", document.line, number + 1);
            let (worked, count) = work(document.node, &settings, &place, style)?;
            injected += count;
            all.push(worked);
        }
    }
    print(args, &all, Style::stdout(color))?;
    if injected == 0 {
        let files: Vec<String> = args
            .filename
            .iter()
            .map(|path| path.display().to_string())
            .collect();
        let why = match all.iter().any(|worked| worked.is_refused) {
            true => "",
            false => ": no document has pods of a training job",
        };
        anyhow::bail!("{}: nothing was injected{why}", files.join(", "));
    }
    if has_comments && args.output == Format::Yaml && !args.diff {
        warning(style, "comments of the manifest are not printed");
    }
    Ok(ExitCode::SUCCESS)
}

fn remediator(text: &str) -> Result<String, String> {
    let is_good = remediator::is_address(text);
    is_good
        .then(|| text.to_owned())
        .ok_or_else(|| "must be https://HOST[:PORT]/PATH".to_owned())
}

fn read(path: &Path) -> anyhow::Result<String> {
    let mut text = String::new();
    let read = match path == Path::new("-") {
        true => std::io::stdin().take(MOST_BYTES + 1).read_to_string(&mut text)?,
        false => fs::File::open(path)?
            .take(MOST_BYTES + 1)
            .read_to_string(&mut text)?,
    };
    anyhow::ensure!(read as u64 <= MOST_BYTES, "more than {} MiB", MOST_BYTES >> 20);
    Ok(text)
}

/// Processes one document. Also returns the number of its templates into which Paceline was injected.
fn work(node: Node, settings: &Settings, place: &str, style: Style) -> anyhow::Result<(Worked, usize)> {
    let value = node.json();
    let name = name_of(&value);
    let mut worked = Worked {
        after: node.clone(),
        before: node,
        patch: Vec::new(),
        name,
        is_refused: false,
    };
    let found = templates(&value);
    worked.is_refused = !found.cannot.is_empty();
    for why in found.cannot {
        warning(style, format_args!("{place}, {}: {why}", worked.name));
    }
    let mut count = 0;
    for template in found.templates {
        let item = item_of(&template.path).and_then(|item| value.pointer(item));
        let name = item.map_or_else(|| worked.name.clone(), name_of);
        let place = format!("{place}, {name}, {}", pointer(&template));
        let Some(pod) = value.pointer(&template.path) else {
            continue;
        };
        match inject(pod, settings, Some(identity(&template, pod))) {
            Ok(done) => {
                count += 1;
                tell::of(&done, &template, &name, count == 1, style);
                worked.patch.extend(patch_of(pod, &done, &template.path));
            }
            Err(refusal) => {
                worked.is_refused = true;
                warning(style, format_args!("{place}: {refusal}"));
            }
        }
    }
    yaml::apply(&mut worked.after, &worked.patch)
        .context("the change does not fit the manifest, which is a bug in Paceline")?;
    Ok((worked, count))
}

/// Returns the name of an object, such as "Job/train".
fn name_of(object: &Value) -> String {
    let meta = &object["metadata"];
    let name = meta["name"].as_str().or(meta["generateName"].as_str());
    let kind = object["kind"].as_str().unwrap_or("?");
    format!("{kind}/{}", name.unwrap_or(""))
}

/// Returns the part of the path up to the innermost item of a List.
fn item_of(path: &str) -> Option<&str> {
    let (mut end, mut rest) = (0, path);
    while let Some(inner) = rest.strip_prefix("/items/") {
        end = path.len() - inner.len() + inner.find('/').unwrap_or(inner.len());
        rest = &path[end..];
    }
    (end > 0).then(|| &path[..end])
}

fn identity(template: &Template, pod: &Value) -> Identity {
    let named = &pod["metadata"]["annotations"]["paceline.dev/container"];
    template.identity(pod, named.as_str())
}

fn pointer(template: &Template) -> &str {
    match template.path.as_str() {
        "" => "/",
        path => path,
    }
}

fn patch_of(pod: &Value, done: &Injected, path: &str) -> Vec<Value> {
    let mut patch = patch::difference(pod, &done.pod);
    for operation in &mut patch {
        let inner = operation["path"].as_str().unwrap_or("");
        operation["path"] = json!(format!("{path}{inner}"));
    }
    patch
}

fn print(args: &ManifestArgs, all: &[Worked], style: Style) -> anyhow::Result<()> {
    let mut text = String::new();
    for (number, worked) in all.iter().enumerate() {
        if args.diff {
            let (before, after) = (yaml::text(&worked.before), yaml::text(&worked.after));
            text.push_str(&tell::difference(&worked.name, &before, &after, style));
            continue;
        }
        match args.output {
            Format::Yaml => {
                if number > 0 {
                    text.push_str("---\n");
                }
                text.push_str(&yaml::text(&worked.after));
            }
            Format::Json => {
                text.push_str(&serde_json::to_string_pretty(&worked.after.json())?);
                text.push('\n');
            }
            Format::Patch if worked.patch.is_empty() => {}
            Format::Patch => {
                let line = json!({ "document": number + 1, "object": worked.name, "patch": worked.patch });
                text.push_str(&line.to_string());
                text.push('\n');
            }
        }
    }
    Ok(output::print(&text)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn worked(manifest: &str) -> (Worked, usize) {
        let document = yaml::read(manifest).unwrap().remove(0);
        work(
            document.node,
            &Settings::default(),
            "m.yaml",
            Style::stderr(Color::Never),
        )
        .unwrap()
    }

    #[test]
    fn an_item_of_a_list_is_called_by_its_own_name() {
        for (path, item) in [
            ("", None),
            ("/spec/template", None),
            ("/items/3", Some("/items/3")),
            ("/items/0/spec/template", Some("/items/0")),
            ("/items/1/items/2/spec", Some("/items/1/items/2")),
        ] {
            assert_eq!(item_of(path), item, "{path}");
        }
        let job = json!({ "kind": "Job", "metadata": { "generateName": "train-" } });
        assert_eq!(name_of(&job), "Job/train-");
    }

    /// A document without pods does not count as refused.
    #[test]
    fn what_was_refused_is_known() {
        let pod = |name: &str| {
            format!(
                "apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{containers: [{{name: {name}}}]}}\n"
            )
        };
        for (manifest, count, is_refused) in [
            (pod("paceline"), 0, true),
            (pod("t"), 1, false),
            ("apiVersion: v1\nkind: Service\n".to_owned(), 0, false),
        ] {
            let (worked, injected) = worked(&manifest);
            assert_eq!((injected, worked.is_refused), (count, is_refused), "{manifest}");
        }
    }
}
