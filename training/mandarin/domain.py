"""Which Chinese characters the second stage learns, how they sound, and texts of them.

The 200 commonest characters of written Chinese with those of numbers, dates, times and greetings.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Mapping
from itertools import chain

from pypinyin import Style, lazy_pinyin, pinyin

_COMMONEST = (
    "的一是了我不人在他有这个上们来到时大地为子中你说生国年着就那和要她出也得里后自以会家可下而过天去能对小多然于"
    "心学么之都好看起发当没成只如事把还用第样道想作种开美总从无情己面最女但现前些所同日手又行意动方期它头经长儿回"
    "位分爱老因很给名法间知世什两次使身者被高已亲其进此话常与活正感见明问力理点文几定本公特做外孩相西果走月十实向"
    "声车全信重三机工物气每打真太新比才便夫再书部水像眼等体却电主"
)
_FIGURES = "零一二三四五六七八九十百千万亿半两点分"
_DATES = "今明昨早晚午星期秒钟元块号"
_GREETINGS = "您好谢请再见欢迎吗呢"

CHARACTERS: tuple[str, ...] = tuple(dict.fromkeys(chain(_COMMONEST, _FIGURES, _DATES, _GREETINGS)))
"""Every character once."""

MARKS = "，。"
NEUTRAL = "5"  # tone
HELD_OUT_ONE_IN = 40

# Capitals name another rule; what stands in no rule is said as it is.
_RULES: Mapping[str, tuple[str, ...]] = {
    "N": ("一", "二", "三", "四", "五", "六", "七", "八", "九"),
    "T": ("十", "十N", "N十", "N十N"),
    "C": ("N", "T", "N百", "N百N十N", "N百零N", "N千", "N万", "两千N百", "三百万", "N亿"),
    "Y": ("二零N", "一九N"),
    "M": ("一", "二", "三", "四", "五", "六", "七", "八", "九", "十", "十一", "十二"),
    "DATE": ("MM月T号", "MM月T日", "二零二N年MM月", "一九N十年", "星期W", "今天", "明天", "昨天"),
    "MM": ("一", "二", "三", "四", "五", "六", "七", "八", "九", "十", "十一", "十二"),
    "W": ("一", "二", "三", "四", "五", "六", "日"),
    "TIME": ("早上N点", "下午N点半", "晚上T点", "N点T分", "中午十二点", "上午N点"),
    "WHO": ("我", "你", "他", "她", "我们", "你们", "他们", "大家", "老人", "孩子", "女人"),
    "WHERE": ("家里", "车里", "学里", "中国", "美国", "外面", "那里", "这里", "水里", "地上"),
    "THING": ("书", "车", "电话", "水", "花", "手机", "文章", "信", "作品", "东西"),
    "ADJ": ("好", "大", "小", "新", "老", "高", "美", "重", "多", "长", "真", "明"),
    "DO": ("看", "想", "要", "做", "用", "打", "说", "给", "见", "问", "爱", "学"),
    "CLAUSE": (
        "WHOWHERE",
        "WHO在WHERE",
        "WHO要去WHERE",
        "WHO有C个孩子",
        "WHO很ADJ",
        "WHO不ADJ",
        "这是WHO的家",
        "那个人是WHO",
        "WHO知道这个",
        "WHO会DO",
        "WHO想DO那个",
        "今天是DATE",
        "现在是TIME",
        "WHO在TIME走",
        "DATETIME见",
        "C元",
        "一共C块",
        "第C次",
        "C个人",
        "C年",
        "C分钟",
        "百分之T",
        "N点NN",
        "WHO没有家",
        "WHO在家里等你",
        "这些都是我们的",
        "天气真ADJ",
        "WHO的名字是什么",
        "你好吗",
        "WHO最爱WHERE",
        "WHO已经来了",
        "WHO还没有来",
    ),
    "GREETING": (
        "你好",
        "您好",
        "大家好",
        "早上好",
        "晚上好",
        "谢谢你",
        "谢谢",
        "再见",
        "明天见",
        "欢迎你",
        "请再说一次",
        "你好吗",
        "很好",
    ),
    "SENTENCE": (
        "CLAUSE",
        "CLAUSE",
        "CLAUSE，CLAUSE",
        "GREETING",
        "GREETING，CLAUSE",
        "C",
        "DATE",
        "TIME",
        "DATETIME",
        "DATE，CLAUSE",
        "CLAUSE，GREETING",
    ),
}
_NAMES = sorted(_RULES, key=len, reverse=True)


def syllables(text: str) -> list[str]:
    """The pinyin of each character with the number of its tone, 5 for the neutral one."""
    return list(lazy_pinyin(text, style=Style.TONE3, neutral_tone_with_five=True))


def all_syllables() -> list[str]:
    """Every syllable that a character of the domain can stand for, neutral ones included."""
    readings = (
        pinyin(c, style=Style.TONE3, heteronym=True, neutral_tone_with_five=True)[0]
        for c in CHARACTERS
    )
    known = set(chain.from_iterable(readings))
    return sorted(known | {syllable[:-1] + NEUTRAL for syllable in known})


class MandarinSource:
    """Draws texts; those of a held-out source are none of the others.

    Args:
        seed: Of the draws.
        held_out: Whether only held-out texts are drawn, or only all others.
    """

    def __init__(self, seed: int, held_out: bool) -> None:
        self._random = random.Random(seed)
        self._held_out = held_out

    def sentence(self) -> str:
        """A sentence of a small grammar."""
        return self._fitting(lambda: self._expand("SENTENCE"))

    def characters(self, most: int) -> str:
        """Random characters, all equally likely, with a comma now and then."""
        return self._fitting(lambda: self._characters(most))

    def _fitting(self, draw: Callable[[], str]) -> str:
        while True:
            text = draw()
            if set(text) <= _SAYABLE and is_held_out(text) is self._held_out:
                return text + ("。" if self._random.random() < 0.5 else "")

    def _expand(self, rule: str) -> str:
        text, out = self._random.choice(_RULES[rule]), ""
        while text:
            name = next((name for name in _NAMES if text.startswith(name)), "")
            out += self._expand(name) if name else text[0]
            text = text[len(name) or 1 :]
        return out

    def _characters(self, most: int) -> str:
        drawn = self._random.choices(CHARACTERS, k=self._random.randint(1, most))
        marked = [c + ("，" if self._random.random() < 0.12 else "") for c in drawn[:-1]]
        return "".join([*marked, drawn[-1]])


_SAYABLE = frozenset(CHARACTERS) | frozenset(MARKS)


def is_held_out(text: str) -> bool:
    """Whether a text is kept from training; a single character never is."""
    spoken = "".join(c for c in text if c in CHARACTERS)
    return len(spoken) > 1 and zlib.crc32(spoken.encode()) % HELD_OUT_ONE_IN == 0


def held_out_sentences(count: int) -> list[str]:
    """Sentences of the grammar that no training has seen, each of other syllables."""
    source = MandarinSource(7, held_out=True)
    chosen: dict[tuple[str, ...], str] = {}
    while len(chosen) < count:
        text = source.sentence()
        chosen.setdefault(tuple(syllables(text.rstrip("。"))), text)
    return list(chosen.values())
