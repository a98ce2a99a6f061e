"""The generated blocks of docs/trajectories.md and docs/theory.md, from the records of the numerical rows."""

from collections.abc import Callable, Iterable
from typing import Any

from agdopt.race.numerical.cell import three
from agdopt.race.numerical.cells import listing
from agdopt.race.numerical.functions import FUNCTIONS
from agdopt.race.numerical.gradient import power
from agdopt.race.numerical.reddi import cures, grouped

Records = dict[str, dict[str, Any]]


def table(head: Iterable[str], rows: Iterable[Iterable[Any]]) -> str:
    def line(cells: Iterable[Any]) -> str:
        return "| " + " | ".join(str(cell).replace("|", "\\|") for cell in cells) + " |"

    head = list(head)
    return "\n".join([line(head), line(["---"] * len(head)), *map(line, rows)])


def claims(*names: str) -> Callable[[Records], str]:
    """The cells of these names, or of these rows."""

    def block(records: Records) -> str:
        rows = [row for row in listing(records) if row["cell"] in names or row["row"] in names]
        return table(
            ["claim", "the paper", "here", "verdict"],
            [(row["claim"], row["paper"], row["ours"], f"**{row['verdict']}**") for row in rows],
        )

    return block


def why(records: Records) -> str:
    n = records["F1.why"]
    names = {
        "AGD": "everything, as in AGD",
        "only s_1": "the first gradient squared, and nothing after it",
        "without s_1": "everything but the first gradient",
        "Adam": "Adam, for comparison",
    }
    shares = (
        f"Share of the first gradient squared in b: at least {n['least_share']:.2%} in either coordinate "
    )
    shares += (
        f"at every one of {n['steps']} steps. The longest step is {n['longest_step'] / n['lr']:.1f} times "
    )
    shares += "the rate."
    return f"{shares}\n\n" + table(
        ["what b is made of", "steps to 0.1 / 1e-2 / 1e-3"],
        [(words, three(n["reached"][name])) for name, words in names.items()],
    )


def functions(records: Records) -> str:
    cells = [records[f"F3.{name}"]["optimizers"] for name in FUNCTIONS]
    rows = [
        (f"{name}, rate {cells[0][name]['lr']:g}", *(_reached(cell[name]) for cell in cells))
        for name in cells[0]
    ]
    head = ["", *(f"{f.formula} from {f.start}" for f in FUNCTIONS.values())]
    return claims("F3")(records) + "\n\n" + table(head, rows)


def _reached(entry: dict[str, Any]) -> str:
    return "diverges" if entry["diverged"] else three(entry["reached"]) if entry["reached"] else "-"


def rates(records: Records) -> str:
    found = records["F7.best"]["optimizers"]
    lrs = [f"{entry['lr']:g}" for entry in next(iter(found.values()))]

    def steps(entry: dict[str, Any]) -> Any:
        return entry["reached"][2] if len(entry["reached"]) == 3 else "diverges" if entry["diverged"] else "-"

    rows = [(name, *map(steps, entries)) for name, entries in found.items()]
    return claims("F7")(records) + "\n\n" + table(["steps to 1e-3 at rate", *lrs], rows)


def variance(records: Records) -> str:
    rows = records["C3.correlated"]["rows"]
    correlated = table(
        ["correlation of neighbours", "measured", "exact sum", "the formula"],
        [(r["rho"], f"{r['measured']:.4f}", f"{r['exact']:.4f}", f"{r['formula']:.4f}") for r in rows],
    )
    return claims("C3")(records) + "\n\n" + correlated


def lemmas(records: Records) -> str:
    return claims(
        "THEORY.lemma1",
        "THEORY.lemma2",
        "THEORY.falling",
        "THEORY.lemma3",
        "THEORY.lemma3-proved",
        "THEORY.lemma4",
        "THEORY.sums",
    )(records)


def tightness(records: Records) -> str:
    checks = {
        name: check
        for cell in ("THEORY.lemma2", "THEORY.lemma3-proved", "THEORY.lemma4")
        for name, check in records[cell]["checks"].items()
    }
    betas = list(next(iter(checks.values()))["by_beta1"])
    return table(
        ["largest share of its bound, beta1 =", *betas],
        [(name, *(f"{check['by_beta1'][b]:.2g}" for b in betas)) for name, check in checks.items()],
    )


def sums(records: Records) -> str:
    n = records["THEORY.sums"]
    wrong = [
        ("sum_{1..T} 1/sqrt t < 2 sqrt(T - 1) - 1", n["sum_of_roots_wrong_at"]),
        ("sum_{1..T} 1/t < log(T - 1) + 1", n["sum_of_inverses_wrong_at"]),
    ]
    return table(["step of a proof", "wrong at T ="], [(s, ", ".join(map(str, at))) for s, at in wrong])


def regret(records: Records) -> str:
    n = records["THEORY.regret"]
    problems = list(dict.fromkeys(row["problem"] for row in n["rows"]))
    settings = list(dict.fromkeys(row["setting"] for row in n["rows"]))
    found = {(r["setting"], r["problem"]): r for r in n["rows"] if r["delta"] == 1e-8}

    def shown(row: dict[str, Any]) -> str:
        power = "none" if row["exponent"] is None else f"{abs(row['exponent']):.2f}"
        return f"{power}; {row['regret']:.3g}"

    rows = [(s, *(shown(found[s, p]) for p in problems)) for s in settings]
    head = [f"power of T; regret at T = {n['T']:,}", *problems]
    bounds = ", ".join(f"{bound:.0e} at delta {delta:g}" for delta, bound in n["bound_at_T"])
    words = f"Corollary 3 bounds the same regret by {bounds}."
    return claims("THEORY.regret")(records) + "\n\n" + table(head, rows) + "\n\n" + words


def gradient(records: Records) -> str:
    n = records["THEORY.gradient"]
    rows: dict[str, list[str]] = {}
    for row in n["rows"]:
        beta1 = f"{row['beta1']:g}" + ("/sqrt t" if row["schedule"] == "sqrt" else "")
        cells = rows.setdefault(f"{beta1}, {row['beta2']:g}; alpha {row['alpha']:g}", [])
        cells.append(f"{row['curve'][-1]:.2g}; {power(n, row):.2f}")
    head = ["beta1, beta2", "Algorithm 1: at T, power of T", "Algorithm 2"]
    return claims("THEORY.gradient")(records) + "\n\n" + table(head, [(k, *v) for k, v in rows.items()])


def reddi(records: Records) -> str:
    first = grouped(records["THEORY.reddi1"], "AGD, Algorithm 1")
    second = grouped(records["THEORY.reddi2"], "AGD, Algorithm 2")
    adam = grouped(records["THEORY.reddi1"], "Adam")
    rows = []
    for one, two, other in zip(first, second, adam, strict=True):
        k, cure = one[0], cures(one)
        where = f"C = {k['C']:g}, period {k['period']}, betas {k['beta1']:g}, {k['beta2']:.3g}"
        ends = (f"{group[0]['ends_at']:+.3f}" for group in (other, one, two))
        rows.append((where, *ends, "none tried" if cure is None else f"{cure:g}"))
    head = ["ends at (-1 is best)", "Adam", "Algorithm 1", "Algorithm 2", "delta that cures Algorithm 1"]
    return claims("THEORY.reddi1", "THEORY.reddi2")(records) + "\n\n" + table(head, rows)


def bounds(records: Records) -> str:
    n = records["THEORY.bounds"]
    rows = [
        (
            f"{r['delta']:g}",
            f"{r['theorem1']:.0e}",
            f"10^{r['theorem1_says_something_from']}",
            f"{r['theorem2']:.0e}",
            f"10^{r['theorem2_says_something_from']}",
        )
        for r in n["rows"]
    ]
    head = ["delta", "Theorem 1", "of use from T =", "Theorem 2", "of use from T ="]
    power = n["middle_sum_grows_like_T_to"]
    words = f"Theorem 2's middle sum grows like T^{power['constant']:.2f} where beta1 is constant, and like "
    words += f"T^{power['inverse']:.2f} where it is beta1/t."
    return claims("THEORY.bounds")(records) + "\n\n" + table(head, rows) + "\n\n" + words


def slips(records: Records) -> str:
    return claims(*(cell for cell in records if cell.startswith("THEORY.slip-")))(records)


def debias(records: Records) -> str:
    rows = records["THEORY.slip-debias"]["rows"]
    names = {"constant": "constant", "sqrt": "beta1 / sqrt t", "inverse": "beta1 / t"}
    how = {"power": "1 - beta1_t^t", "product": "1 - prod beta1_i"}
    steps = list(rows[0]["mhat"])
    return table(
        ["beta1_t", "debiased by", *(f"t = {t}" for t in steps)],
        [(names[r["schedule"]], how[r["debias"]], *(f"{r['mhat'][t]:.4f}" for t in steps)) for r in rows],
    )


BLOCKS: dict[str, dict[str, Callable[[Records], str]]] = {
    "docs/trajectories.md": {
        "f1": claims("F1"),
        "why": why,
        "f3": functions,
        "f7": rates,
        "c3": variance,
    },
    "docs/theory.md": {
        "lemmas": lemmas,
        "tightness": tightness,
        "sums": sums,
        "gradient": gradient,
        "regret": regret,
        "reddi": reddi,
        "bounds": bounds,
        "slips": slips,
        "debias": debias,
    },
}
