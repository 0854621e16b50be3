"""Build a release, check it, and say where it comes from: `scripts/release`.

It builds the commit that is checked out, in dist/release: source archive and wheels, each of which is installed into an
environment of its own and served; the container image; a bill of materials; release notes; an in-toto statement;
SHA256SUMS. It publishes nothing, and changes nothing in the checkout.
"""

import argparse
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory

import notice
import release_check
import release_image
import release_packages
import release_provenance
import release_source
from release_source import ROOT, Source


@contextmanager
def step(name: str) -> Iterator[None]:
    """Prints what is done, and how long it took."""
    began = time.monotonic()
    print(f"{name} …", file=sys.stderr, flush=True)
    yield
    print(f"{name}: {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)


def packages(checkout: Path, target: Path, source: Source) -> release_packages.Packages:
    """The source archive and the pure wheel. They are built twice, and must be the same bytes."""
    built = release_packages.build(checkout, target, source.seconds)
    with TemporaryDirectory(prefix="modserve-again-") as work:
        again = release_packages.build(checkout, Path(work), source.seconds)
        for first, second in ((built.archive, again.archive), (built.wheel, again.wheel)):
            if release_packages.sha256(first) != release_packages.sha256(second):
                raise RuntimeError(f"{first.name} has other bytes when it is built again")
    return built


def compiled_wheels(archive: Path, wheels: Path | None, target: Path, seconds: int) -> list[Path]:
    """Those of a folder, or the one that `scripts/wheels` builds here from the source archive."""
    if wheels is None:
        environment = {**os.environ, "SOURCE": str(archive), "SOURCE_DATE_EPOCH": str(seconds)}
        subprocess.run([ROOT / "scripts" / "wheels", target], env=environment, check=True, stdout=sys.stderr)
    else:
        for path in sorted(wheels.glob("*.whl")):
            shutil.copy(path, target)
    return sorted(set(target.glob("*.whl")) - set(target.glob("*-none-any.whl")))


def check_wheels(compiled: Sequence[Path], pure: Path, version: str) -> None:
    """Raises RuntimeError if there is none, or if one is not the pure wheel with extension modules."""
    if not compiled:
        raise RuntimeError("there is no compiled wheel")
    for path in compiled:
        if not path.name.startswith(f"modserve-{version}-"):
            raise RuntimeError(f"{path.name} is no wheel of {version}")
        if others := release_packages.other_files(path, pure):
            raise RuntimeError(f"{path.name} is not {pure.name} with extension modules: {', '.join(others[:5])}")


def for_this_python(wheels: Sequence[Path]) -> list[Path]:
    """Those that pip would install here."""
    from packaging.tags import sys_tags
    from packaging.utils import parse_wheel_filename

    own = frozenset(sys_tags())
    return [path for path in wheels if parse_wheel_filename(path.name)[3] & own]


def release(source: Source, wheels: Path | None, target: Path) -> None:
    """All steps. Raises RuntimeError for what is not as it should be."""
    version = source.version
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    with TemporaryDirectory(prefix="modserve-release-") as folder:
        work = Path(folder)
        checkout = work / "checkout"
        release_source.export(ROOT, source.commit, checkout)
        with step("source archive and pure wheel, twice"):
            pure = packages(checkout, target, source)
        with step("compiled wheels"):
            compiled = compiled_wheels(pure.archive, wheels, target, source.seconds)
            check_wheels(compiled, pure.wheel, version)
        every = [pure.archive, pure.wheel, *compiled]
        with step("twine check"):
            release_check.run(sys.executable, "-m", "twine", "check", "--strict", *map(str, every))
        constraints = checkout / "constraints.txt"
        lines = (checkout / "requirements.lock").read_text("utf-8").splitlines()
        constraints.write_text("\n".join(line.removesuffix(" \\") for line in lines if "--hash=" not in line))
        for package in (pure.archive, pure.wheel, *for_this_python(compiled)):
            with step(f"{package.name} installed and served"):
                programs = release_check.install(package, work / package.name, constraints)
                form = "compiled" if package in compiled else "interpreted"
                release_check.serve(programs, version, form)
        pyproject = checkout / "pyproject.toml"
        with step("bill of materials"):
            release_provenance.bill_of_materials(
                pyproject, version, work / pure.wheel.name, target / f"modserve-{version}.cdx.json"
            )
        program = release_image.builder()
        if program:
            image = target / f"modserve-{version}-image"
            with step(f"container image, by {program}"):
                tar = image.with_name(f"{image.name}.tar")
                release_image.build(program, checkout, version, source.commit, source.seconds, tar)
            with step("bill of materials of the image"):
                extras = ",".join(notice.DEFAULT)
                release_check.install(f"{pure.wheel}[{extras}]", work / image.name, constraints)
                materials = image.with_name(f"{image.name}.cdx.json")
                release_provenance.bill_of_materials(pyproject, version, work / image.name, materials)
    entry = release_source.section(source.changelog, version)
    (target / "RELEASE_NOTES.md").write_text(release_source.notes(entry), "utf-8")
    write_provenance(source, target)
    print((target / "SHA256SUMS").read_text("utf-8"), end="")
    untried = sorted({path.name for path in compiled} - {path.name for path in for_this_python(compiled)})
    if untried:
        print(f"not installed here, since they are for other machines: {', '.join(untried)}")
    if not program:
        print("no container image: there is no Docker daemon here, nor what scripts/image needs (see its head)")
    if entry.day is None:
        print(f"this is a rehearsal: CHANGELOG.md says that {version} is unreleased")
    print(f"nothing is signed or published; the files are in {target.relative_to(ROOT)}")


def write_provenance(source: Source, target: Path) -> None:
    """The statement about all files of the release so far, and then the checksums of all."""
    digests = {path.name: release_packages.sha256(path) for path in target.iterdir()}
    remote = subprocess.run(["git", "-C", ROOT, "remote", "get-url", "origin"], capture_output=True, text=True)
    statement = release_provenance.statement(
        digests,
        source.version,
        source.commit,
        source.seconds,
        release_provenance.public_address(remote.stdout.strip()),
        release_provenance.tools(),
    )
    release_provenance.write_json(target / f"modserve-{source.version}.intoto.json", statement)
    (target / "SHA256SUMS").write_text(release_provenance.checksums(target.iterdir()), "utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="scripts/release", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "version",
        nargs="?",
        default="",
        help="the version to release, or its tag (v0.1.0); without it, a rehearsal of the current version",
    )
    parser.add_argument(
        "--wheels",
        type=Path,
        help="a folder with compiled wheels of `scripts/wheels --all`; default: build this machine's",
    )
    options = parser.parse_args()
    source = release_source.read()
    reasons = release_source.refusals(source, options.version.removeprefix("v"), date.today())
    if reasons:
        sys.exit("\n".join(f"scripts/release: {reason}" for reason in reasons))
    if options.version and subprocess.run([sys.executable, ROOT / "scripts" / "audit.py"]).returncode:
        sys.exit(1)  # known vulnerabilities, or a list that is too old to know them
    try:
        release(source, options.wheels, ROOT / "dist" / "release")
    except (RuntimeError, subprocess.SubprocessError, OSError) as error:
        sys.exit(f"scripts/release: {error}")


if __name__ == "__main__":
    main()
