"""How figures are read, by kind; docs/text.md has the policy."""

import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from chattts_triton.errors import ModelLoadError
from chattts_triton.text.figure_patterns import FIGURE, KINDS
from chattts_triton.text.figure_reader import FigureReader
from chattts_triton.text.figures import read_figures
from chattts_triton.text.normalizer import TextNormalizer
from chattts_triton.text.number_reader import NumberReader

CHINESE = [
    ("今年4月15日", "今年四月十五日"),  # B-02
    ("我的电话号码是1234567889", "我的电话号码是一二三四五六七八八九"),  # B-01
    ("长度是1.5米。", "长度是一点五米。"),  # B-15
    ("１６９号箱门", "一百六十九号箱门"),  # B-03
    ("数组[0]等于5", "数组零等于五"),  # B-20
    ("abb一样，246一样", "abb一样，两百四十六一样"),  # B-04
    ("2024年5月6日", "二零二四年五月六日"),
    ("日期2024-05-06", "日期二零二四年五月六日"),
    ("日期2024/5/6", "日期二零二四年五月六日"),
    ("日期2024.5.6", "日期二零二四年五月六日"),
    ("日期2024-05", "日期二零二四年五月"),
    ("日期5/20/2024", "日期二零二四年五月二十日"),
    ("日期31/12/2024", "日期二零二四年十二月三十一日"),
    ("编号2024.13.45", "编号二零二四点十三点四十五"),
    ("2月2日", "二月二日"),
    ("3月15日至20日", "三月十五日至二十日"),
    ("2000年和1000年", "二零零零年和一千年"),
    ("巴黎2024奥运会", "巴黎二零二四奥运会"),
    ("花了2024元", "花了两千零二十四元"),
    ("90后和00后", "九零后和零零后"),
    ("19世纪80年代", "十九世纪八十年代"),
    ("1980s的歌", "一九八零年代的歌"),
    ("14:30开始", "十四点三十分开始"),
    ("2:05到2:00", "两点零五分到两点"),
    ("12:30:45", "十二点三十分四十五秒"),
    ("早上8:30am", "早上上午八点三十分"),
    ("12：30", "十二点三十分"),
    ("比分3:2", "比分三比二"),
    ("以21:15获胜", "以二十一比十五获胜"),
    ("比例16:9", "比例十六比九"),
    ("3/4杯", "四分之三杯"),
    ("1 1/2杯", "一又二分之一杯"),
    ("½杯，1½杯", "二分之一杯，一又二分之一杯"),
    ("血压120/80", "血压一百二十斜杠八十"),
    ("50.5%和5‰", "百分之五十点五和千分之五"),
    ("１００％", "百分之一百"),
    ("气温-5℃到10℃", "气温负五摄氏度到十摄氏度"),
    ("3℃~5℃", "三摄氏度到五摄氏度"),
    ("10-20%的人", "百分之十到百分之二十的人"),
    ("3-5天", "三到五天"),
    ("2-3个", "两到三个"),
    ("3～5个", "三到五个"),
    ("5元-10元", "五元到十元"),
    ("100~200元", "一百到两百元"),
    ("2020～2024年", "二零二零年到二零二四年"),
    ("房间1-2-3", "房间一，二，三"),
    ("3-2=1，1+1=2", "三减二等于一，一加一等于二"),
    ("3×5，7x24，5>3，±5，≥3", "三乘五，七乘二十四，五大于三，正负五，大于等于三"),
    ("其中x=5", "其中x等于五"),
    ("$100和￥3.50", "一百美元和三点五元"),
    ("¥1,000.00", "一千元"),
    ("价格$3.5亿", "价格三点五亿美元"),
    ("融资US$3m", "融资三百万美元"),
    ("人口1,234,567", "人口一百二十三万四千五百六十七"),
    ("1.2亿元", "一点二亿元"),
    ("重3kg，100km/h，5m²，12V", "重三千克，每小时一百公里，五平方米，十二伏"),
    ("重2kg", "重两千克"),
    ("10²", "十的平方"),
    ("内存16GB", "内存十六GB"),
    ("2台，2次，2点，2楼，第2个", "两台，两次，两点，二楼，第二个"),
    ("第12345名", "第一万二千三百四十五名"),
    ("拨打110或10086", "拨打一一零或一零零八六"),
    ("12345元", "一万二千三百四十五元"),
    ("1234567个", "一百二十三万四千五百六十七个"),
    ("电话010-12345678", "电话零一零，一二三四五六七八"),
    ("手机138-1234-5678", "手机一三八，一二三四，五六七八"),
    ("+86 138 1234 5678", "加八六，一三八，一二三四，五六七八"),
    ("热线400-800-1234", "热线四零零，八零零，一二三四"),
    ("编号007", "编号零零七"),
    ("约0.05和.5米", "约零点零五和零点五米"),
    ("版本1.2.3和v2.0", "版本一点二点三和v二点零"),
    ("地址192.168.1.1", "地址一九二点一六八点一点一"),
    ("MP3播放器，A4纸，H1N1，PM2.5", "MP三播放器，A四纸，H一N一，PM二点五"),
    ("波音A380，GPT-4很强", "波音A三八零，GPT四很强"),
    ("5G网络和3D打印", "五G网络和三D打印"),
    ("①打开②关闭", "一打开二关闭"),
    ("身高5'10\"", "身高五英尺十英寸"),
    ("9个", "九个"),
    ("3号楼2单元502室", "三号楼二单元五百零二室"),
    ("验证码：847291，密码是0000", "验证码，八四七二九一，密码是零零零零"),
    ("歼-20和东风-41", "歼二十和东风四十一"),
    ("零件-5和盈利-3.5和气温为-5", "零件五和盈利负三点五和气温为负五"),
    ("芯片i7-12700K", "芯片i七，一万二千七百K"),
    ("浓度50μg/m³", "浓度每立方米五十微克"),
    ("学C++ 20年", "学C 二十年"),
    ("12345678901234567890元", "一二三四五六七八九零一二三四五六七八九零元"),
    ("访问www.example.com", "访问www点example点com"),
    ("见https://a.cn/b_1?x=2。", "见a点cn斜杠b下划线一问号x等于二。"),
    ("邮箱foo.bar@example.com。", "邮箱foo点bar艾特example点com。"),
]
ENGLISH = [
    ("I have 3 apples and $100.", "I have three apples and one hundred dollars."),  # B-06
    ("In 1999, in 2005 and in 2024", "In nineteen ninety nine, in two thousand five "
     "and in twenty twenty four"),
    ("1000 men, 1234 women", "one thousand men, one thousand two hundred and thirty four women"),
    ("1,234.5 points", "one thousand two hundred and thirty four point five points"),
    ("It costs $1.50.", "It costs one dollar and fifty cents."),
    ("It costs $0.99 or $1 or £5.00", "It costs ninety nine cents or one dollar or five pounds"),
    ("a $3.5 million deal, a $2bn fund", "a three point five million dollars deal, "
     "a two billion dollars fund"),
    ("May 5, 2024 and 4 July", "May fifth, twenty twenty four and fourth July"),
    ("on 2024-05-06", "on May sixth, twenty twenty four"),
    ("in 2024-05", "in May twenty twenty four"),
    ("at 3:30 pm or 10:00", "at three thirty P M or ten o'clock"),
    ("at 5 pm or 12:30:15", "at five P M or twelve thirty fifteen"),
    ("a score of 3:2", "a score of three to two"),
    ("half is 1/2 and 3/4 and 1 1/2", "half is one half and three quarters and one and one half"),
    ("24/7 support since 9/11", "twenty four slash seven support since nine slash eleven"),
    ("1/7 is 50.5%", "one seventh is fifty point five percent"),
    ("10-20% of 3-5 days", "ten to twenty percent of three to five days"),
    ("from 1960-1970", "from nineteen sixty to nineteen seventy"),
    ("it was -5°C", "it was minus five degrees Celsius"),
    ("5 kg, 1 km, 100 mph", "five kilograms, one kilometer, one hundred miles per hour"),
    ("the 1990s and the 80s and '90s", "the nineteen nineties and the eighties and nineties"),
    ("the 2000s", "the two thousands"),
    ("a 30s break", "a thirty seconds break"),
    ("1st, 22nd, 13th, 3rd-party", "first, twenty second, thirteenth, third party"),
    ("No. 5 and #7", "number five and number seven"),
    ("call 555-1234 or (555) 123-4567", "call five five five, one two three four or "
     "five five five, one two three, four five six seven"),
    ("id 12345678 here", "id one two three four five six seven eight here"),
    ("all 12345678 people", "all twelve million three hundred forty five thousand "
     "six hundred and seventy eight people"),
    ("version 1.2.3 on v2.0", "version one point two point three on v two point zero"),
    ("MP3 and B2B with GPT-4", "MP three and B two B with GPT four"),
    ("agent 007", "agent zero zero seven"),
    ("he is 5'10\" tall", "he is five foot ten tall"),
    ("see www.example.com/a-1 now", "see www dot example dot com slash a dash one now"),
    ("RSVP by 6/15, PIN 8472", "RSVP by six slash fifteen, PIN eight four seven two"),
    ("2 + 2 = 4 and 3x5", "two plus two equals four and three times five"),
]  # fmt: skip
MIXED = [
    ("用5G+AI，3D/VR", "用五G AI，三D VR"),
    ("我买了iPhone 15 Pro手机", "我买了iPhone fifteen Pro手机"),
    ("他说，I have 3 apples，我有3个", "他说，I have three apples，我有三个"),
    ("Scores: 1, 2, 3. 得分：1，2，3。", "Scores, one, two, three. 得分，一，二，三。"),
    ("on 5月6日 we met", "on 五月六日 we met"),
]


@pytest.mark.parametrize(("text", "wanted"), [*CHINESE, *ENGLISH, *MIXED])
def test_figures_are_read_as_the_policy_says(
    normalizer: TextNormalizer, text: str, wanted: str
) -> None:
    assert normalizer.normalize(text).text == wanted


@pytest.mark.parametrize(
    ("text", "language", "wanted"),
    [("9", None, "九"), ("9", "en", "nine"), ("9", "zh", "九"), ("[laugh]9", "en", "[laugh]nine"),
     ("9 apples", "zh", "nine apples"), ("8...", None, "八."), ("A1", None, "A one"),
     ("A1", "zh", "A一"), ("5kg", None, "five kilograms"), ("5kg", "zh", "五千克")],
)  # fmt: skip
def test_b_11_lang_reads_what_has_no_letters(
    normalizer: TextNormalizer, text: str, language: Any, wanted: str
) -> None:
    assert normalizer.normalize(text, language).text == wanted


def test_each_kind_of_figure_has_an_example_above() -> None:
    texts = [text for text, _ in [*CHINESE, *ENGLISH, *MIXED]]

    found = {match.lastgroup for text in texts for match in FIGURE.finditer(text)}

    assert found == set(KINDS)


def test_a_tag_is_no_figure_and_is_not_looked_into(normalizer: TextNormalizer) -> None:
    text = "有[speed_5]3个[laugh_0]5"

    assert normalizer.normalize(text).text == "有[speed_5]三个[laugh_0]五"


class BrokenReader(NumberReader):
    """A wetext that fails on everything but its check at the start."""

    def _ask_wetext(self, text: str, language: str) -> str | None:
        return {"2个": "两个", "2": "two"}.get(text)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("有123个", "有一二三个"),
        ("第12名", "第一二名"),
        ("12:30开始", "一二点三零分开始"),
        ("3/4杯", "四分之三杯"),
        ("in 1999 at 12:30", "in one nine nine nine at one two three zero"),
        ("the 21st, 3/4", "the two one, three over four"),
    ],
)
def test_what_wetext_cannot_read_is_read_digit_by_digit(text: str, wanted: str) -> None:
    spoken = read_figures(text, None, FigureReader(BrokenReader()))

    assert " ".join(spoken.split()) == wanted


@pytest.mark.parametrize("text", ["#5", "(", "+1 555", "￥", '5"', ""])
def test_wetext_answers_nothing_where_its_own_grammar_fails(text: str) -> None:
    assert NumberReader().read(text, "en") is None


def test_b_26_a_missing_wetext_is_a_load_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wetext", None)

    with pytest.raises(ModelLoadError, match="wetext: cannot be imported"):
        TextNormalizer({})


def test_a_wetext_that_reads_nothing_is_a_load_error() -> None:
    class SilentReader(NumberReader):
        def _ask_wetext(self, text: str, language: str) -> str | None:
            return None

    with pytest.raises(ModelLoadError, match="wetext: does not read 2"):
        SilentReader()


def test_many_threads_read_as_one_does(normalizer: TextNormalizer) -> None:
    texts = [f"有{n}个，{n}:30，{n}.5%，I have {n} apples." for n in range(10, 20)] * 4
    wanted = [normalizer.normalize(text).text for text in texts]
    fresh = TextNormalizer({})
    start = threading.Barrier(8)

    def read(part: int) -> list[str]:
        start.wait(timeout=30)
        return [fresh.normalize(text).text for text in texts[part::8]]

    with ThreadPoolExecutor(8) as pool:
        parts = list(pool.map(read, range(8)))

    assert [parts[index % 8][index // 8] for index in range(len(texts))] == wanted
