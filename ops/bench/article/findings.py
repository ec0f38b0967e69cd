"""What the measurement of a claim found, as a table and as numbers. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from ops.bench.rounds import Samples, as_json
from ops.bench.runs import table


@dataclass(frozen=True)
class Finding:
    """The result of one claim."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    ratios: Samples  # by name, one for each round: what the claim promises to improve, by its base
    samples: Mapping[str, Any]  # by kind, what each round measured
    remark: str = ""  # what the numbers of this call depend on

    def text(self) -> str:
        """The table and the ratios."""
        lines = [table(self.header, self.rows), ""]
        for name, values in self.ratios.items():
            lines.append(f"{name}: {median(values):.2f} ({min(values):.2f} to {max(values):.2f})")
        return "\n".join([*lines, *([f"\n{self.remark}"] if self.remark else [])])


def all_as_json(findings: Mapping[str, Finding]) -> dict[str, Any]:
    """One object for all claims of a call; names are `CLAIM: NAME`."""
    ratios = {f"{claim}: {name}": v for claim, one in findings.items() for name, v in one.ratios.items()}
    samples = {claim: dict(one.samples) for claim, one in findings.items()}
    return as_json(ratios, samples, claims=list(findings))
