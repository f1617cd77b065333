"""Build the documentation site into build/site and check every link of it.

    python scripts/build_docs.py        needs the extra `docs`

The pages of docs/ also have to work where they are, so they link to files outside docs/ (../LOG.md). A copy of docs/ is
made in build/docs, with those files in it and the links changed; the API reference gets an entry for each public name.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
STAGED, SITE = ROOT / "build" / "docs", ROOT / "build" / "site"
OUTSIDE = ("LOG.md", "CHANGELOG.md", "CONTRIBUTING.md")
LINK = re.compile(r"(\]\()([^)#\s]+)((?:#[^)]*)?\))")


def stage() -> None:
    """Copy docs/ and the files that its pages link to into build/docs."""
    shutil.rmtree(STAGED, ignore_errors=True)
    shutil.copytree(
        ROOT / "docs", STAGED, ignore=shutil.ignore_patterns("*.tar.xz", "report", "report-zh", "unfinished")
    )
    for name in OUTSIDE:
        shutil.copy(ROOT / name, STAGED / name)
    for page in STAGED.rglob("*.md"):
        origin = (
            ROOT / page.name
            if page.parent == STAGED and page.name in OUTSIDE
            else ROOT / "docs" / page.relative_to(STAGED)
        )
        page.write_text(
            LINK.sub(lambda link, page=page, origin=origin: _move(link, page, origin), page.read_text("utf-8"))
        )  # type: ignore[misc]
    with (STAGED / "api.md").open("a", encoding="utf-8") as file:
        file.writelines(f"\n::: oelm.{name}\n" for name in public_names())


def public_names() -> list[str]:
    """Return the public names of the package, in the order of its table."""
    sys.path.insert(0, str(ROOT / "src"))
    import oelm

    return [name for name in oelm.__all__ if not name.startswith("_")]


def _move(link: re.Match[str], page: Path, origin: Path) -> str:
    """Return a link as it has to be in the copy of a page, copying the file it leads to if that is missing there."""
    before, target, after = link.groups()
    if "://" in target or target.startswith("mailto:"):
        return link.group()
    file = (origin.parent / target).resolve()
    if not file.is_relative_to(ROOT):
        return link.group()
    inside = file.is_relative_to(ROOT / "docs")
    copy = STAGED / file.relative_to(ROOT / "docs" if inside else ROOT)
    if file.is_dir():
        file, copy = file / "README.md", copy / "README.md"
    if not copy.exists() and file.is_file():
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, copy)
    up = "../" * len(page.parent.relative_to(STAGED).parts)
    return f"{before}{up}{copy.relative_to(STAGED)}{after}"


class Page(HTMLParser):
    """The links and anchors of a built page."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors = {""}
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Collect what a tag links to and what it can be linked by."""
        for name, value in attrs:
            if name in ("href", "src") and value and tag in ("a", "img", "script", "link"):
                self.links.append(value)
            elif name in ("id", "name") and value:
                self.anchors.add(value)


def broken_links(site: Path) -> list[str]:
    """Return `page: link` for every link inside the site that leads nowhere."""
    pages = {path: Page(path) for path in site.rglob("*.html")}
    broken = []
    for path, page in pages.items():
        if path.name == "404.html":  # its links are absolute
            continue
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            target = target / "index.html" if target.is_dir() else target
            anchor = unquote(parts.fragment)
            known = pages[target].anchors if target in pages else {anchor}
            if not target.exists() or anchor not in known:
                broken.append(f"{path.relative_to(site)}: {link}")
    return sorted(set(broken))


def main() -> None:
    """Stage, build without warnings, and check the links."""
    stage()
    shutil.rmtree(SITE, ignore_errors=True)
    zensical = [sys.executable, "-m", "zensical", "build", "--strict", "--clean"]
    if subprocess.run(zensical, cwd=ROOT, check=False).returncode:
        sys.exit("The site was not built. Correct the pages that the lines above name.")
    if broken := broken_links(SITE):
        sys.exit("These links lead nowhere:\n" + "\n".join(broken))
    print(f"{len(list(SITE.rglob('*.html')))} pages in {SITE.relative_to(ROOT)}, every link checked")


if __name__ == "__main__":
    main()
