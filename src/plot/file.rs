//! From a picture to a file, which appears whole or not at all.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use plotters::prelude::{BitMapBackend, DrawingBackend, SVGBackend};
use plotters::style::Color;

use super::Picture;
use super::canvas::Canvas;
use super::colour::PAPER;
use crate::error::Error;

/// The largest width and height of a picture, in points.
pub const LARGEST_SIDE: u32 = 8000;

/// A PNG file is drawn several times as large and then made smaller, which makes its lines and letters smooth; but not
/// with more pixels than this.
const SMOOTHING: usize = 3;
const MOST_PIXELS: usize = 64 << 20;

/// Where the two backends put text that is to stand in the middle of its point: too high by these shares of its size.
const BITMAP_TEXT: f64 = 0.18;
const SVG_TEXT: f64 = 0.07;

/// The kinds of files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    Png,
    Svg,
}

/// Writes a picture in `size` points, or in its own size, as PNG or SVG: the ending of `path` says which. A file that is
/// there is replaced.
///
/// # Errors
///
/// When the ending is another one, a side is zero or above [`LARGEST_SIDE`], or the file cannot be written.
pub fn save(picture: impl Into<Picture>, path: impl AsRef<Path>, size: Option<[u32; 2]>) -> Result<(), Error> {
    let (picture, path) = (picture.into(), path.as_ref());
    let format = format_of(path)?;
    let size = size.unwrap_or_else(|| picture.size());
    if size.iter().any(|side| !(1..=LARGEST_SIDE).contains(side)) {
        let [width, height] = size;
        let problem = format!("a picture of {width} × {height} points; both must be from 1 to {LARGEST_SIDE}");
        return Err(Error::Input(problem));
    }
    let scratch = Scratch::beside(path, format)?;
    match format {
        Format::Png => write_png(&picture, size, &scratch.path),
        Format::Svg => write_svg(&picture, size, &scratch.path),
    }
    .map_err(|problem| Error::file(path, format!("cannot be written: {problem}")))?;
    scratch.put_at(path)
}

/// Whether a picture could be written to `path`, before it is drawn.
///
/// # Errors
///
/// When the ending is neither `.png` nor `.svg`, there is no such folder, or something there is no file.
pub fn check_target(path: impl AsRef<Path>) -> Result<(), Error> {
    format_of(path.as_ref()).map(|_| ())
}

fn format_of(path: &Path) -> Result<Format, Error> {
    let extension = path.extension().and_then(|extension| extension.to_str()).unwrap_or_default();
    let format = match extension.to_ascii_lowercase().as_str() {
        "png" => Format::Png,
        "svg" => Format::Svg,
        _ => return Err(Error::file(path, "is no kind of picture; the name must end with .png or .svg")),
    };
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Err(Error::file(path, format!("cannot be written: there is no folder `{}`", folder.display())));
    }
    if path.is_dir() {
        return Err(Error::file(path, "is a folder"));
    }
    Ok(format)
}

fn folder_of(path: &Path) -> PathBuf {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => PathBuf::from("."),
    }
}

/// A file under a temporary name beside its target; removed unless it is put in place.
struct Scratch {
    path: PathBuf,
    is_put: bool,
}

impl Scratch {
    fn beside(target: &Path, format: Format) -> Result<Self, Error> {
        let name = target.file_name().ok_or_else(|| Error::file(target, "names no file"))?;
        let ending = match format {
            Format::Png => "png",
            Format::Svg => "svg",
        };
        let mut hidden = OsString::from(".");
        hidden.push(name);
        hidden.push(format!(".partial-{}.{ending}", std::process::id()));
        Ok(Self { path: folder_of(target).join(hidden), is_put: false })
    }

    fn put_at(mut self, target: &Path) -> Result<(), Error> {
        let put = std::fs::rename(&self.path, target);
        self.is_put = put.is_ok();
        put.map_err(|error| Error::file(target, format!("cannot be put in place: {error}")))
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if !self.is_put {
            // It may never have been made, and there is nobody left to tell.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn write_svg(picture: &Picture, size: [u32; 2], path: &Path) -> Result<(), String> {
    std::fs::write(path, svg(picture, size)?).map_err(|error| error.to_string())
}

/// The picture as the text of an SVG file.
pub(super) fn svg(picture: &Picture, [width, height]: [u32; 2]) -> Result<String, String> {
    let mut text = String::new();
    {
        let mut backend = SVGBackend::with_string(&mut text, (width, height));
        draw(picture, &mut backend, [width, height], 1, SVG_TEXT)?;
        backend.present().map_err(|error| error.to_string())?;
    }
    Ok(text)
}

fn write_png(picture: &Picture, [width, height]: [u32; 2], path: &Path) -> Result<(), String> {
    let pixels = pixels(picture, [width, height])?;
    let mut file = BitMapBackend::new(path, (width, height));
    file.blit_bitmap((0, 0), (width, height), &pixels).map_err(|error| error.to_string())?;
    file.present().map_err(|error| error.to_string())
}

/// The picture as pixels of three bytes, row by row.
pub(super) fn pixels(picture: &Picture, [width, height]: [u32; 2]) -> Result<Vec<u8>, String> {
    let fits = |scale: &usize| width as usize * height as usize * scale * scale <= MOST_PIXELS;
    let scale = (1..=SMOOTHING).rev().find(fits).unwrap_or(1);
    let large = [width as usize * scale, height as usize * scale];
    let mut pixels = vec![0u8; 3 * large[0] * large[1]];
    {
        let mut backend = BitMapBackend::with_buffer(&mut pixels, (large[0] as u32, large[1] as u32));
        draw(picture, &mut backend, [width, height], scale, BITMAP_TEXT)?;
    }
    Ok(shrink(&pixels, large[0], scale))
}

fn draw<B: DrawingBackend>(
    picture: &Picture,
    backend: &mut B,
    size: [u32; 2],
    scale: usize,
    text_shift: f64,
) -> Result<(), String> {
    let (width, height) = backend.get_size();
    backend
        .draw_rect((0, 0), (width as i32, height as i32), &PAPER.filled(), true)
        .map_err(|error| error.to_string())?;
    picture.draw(&mut Canvas::new(backend, scale as f64, text_shift), size.map(f64::from))
}

/// The means of squares of `scale` × `scale` pixels, three bytes each, of rows of `width`.
fn shrink(pixels: &[u8], width: usize, scale: usize) -> Vec<u8> {
    let (columns, rows) = (width / scale, pixels.len() / (3 * width * scale));
    let mut small = Vec::with_capacity(3 * columns * rows);
    for row in 0..rows {
        for column in 0..columns {
            for channel in 0..3 {
                let of_row = |y: usize| {
                    let start = 3 * ((row * scale + y) * width + column * scale) + channel;
                    pixels[start..].iter().step_by(3).take(scale).map(|byte| usize::from(*byte)).sum::<usize>()
                };
                let sum: usize = (0..scale).map(of_row).sum();
                small.push(((sum + scale * scale / 2) / (scale * scale)) as u8);
            }
        }
    }
    small
}
