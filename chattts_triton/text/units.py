"""What is written in signs around a figure, and how it is spoken: tables only."""

from __future__ import annotations

from typing import NamedTuple


class Unit(NamedTuple):
    """The words around a number; `{}` is the number."""

    zh: str
    en_one: str
    en_many: str


def _unit(zh: str, en_one: str, en_many: str | None = None) -> Unit:
    return Unit(f"{{}}{zh}", f"{{}} {en_one}", f"{{}} {en_many or en_one + 's'}")


def _rate(zh: str, per_zh: str, en: Unit, per_en: str) -> Unit:
    return Unit(f"每{per_zh}{{}}{zh}", f"{en.en_one} per {per_en}", f"{en.en_many} per {per_en}")


_METRE = _unit("米", "meter")
_CUBIC_METRE = _unit("立方米", "cubic meter")
_KILOMETRE = _unit("公里", "kilometer")

UNITS: dict[str, Unit] = {
    "%": Unit("百分之{}", "{} percent", "{} percent"),
    "‰": Unit("千分之{}", "{} per thousand", "{} per thousand"),
    "°C": _unit("摄氏度", "degree Celsius", "degrees Celsius"),
    "℃": _unit("摄氏度", "degree Celsius", "degrees Celsius"),
    "°F": _unit("华氏度", "degree Fahrenheit", "degrees Fahrenheit"),
    "℉": _unit("华氏度", "degree Fahrenheit", "degrees Fahrenheit"),
    "°": _unit("度", "degree"),
    "¢": _unit("美分", "cent"),
    "²": _unit("的平方", "squared", "squared"),
    "³": _unit("的立方", "cubed", "cubed"),
    "nm": _unit("纳米", "nanometer"),
    "μm": _unit("微米", "micrometer"),
    "mm": _unit("毫米", "millimeter"),
    "cm": _unit("厘米", "centimeter"),
    "m": _METRE,
    "km": _KILOMETRE,
    "mm²": _unit("平方毫米", "square millimeter"),
    "cm²": _unit("平方厘米", "square centimeter"),
    "m²": _unit("平方米", "square meter"),
    "m2": _unit("平方米", "square meter"),
    "㎡": _unit("平方米", "square meter"),
    "km²": _unit("平方公里", "square kilometer"),
    "km2": _unit("平方公里", "square kilometer"),
    "cm³": _unit("立方厘米", "cubic centimeter"),
    "m³": _CUBIC_METRE,
    "m3": _CUBIC_METRE,
    "km/h": _rate("公里", "小时", _KILOMETRE, "hour"),
    "m/s": _rate("米", "秒", _METRE, "second"),
    "m³/s": _rate("立方米", "秒", _CUBIC_METRE, "second"),
    "μg/m³": _rate("微克", "立方米", _unit("", "microgram"), "cubic meter"),
    "mg/m³": _rate("毫克", "立方米", _unit("", "milligram"), "cubic meter"),
    "mg/L": _rate("毫克", "升", _unit("", "milligram"), "liter"),
    "MB/s": _rate("MB", "秒", _unit("", "megabyte"), "second"),
    "Mbps": Unit("每秒{}兆比特", "{} megabit per second", "{} megabits per second"),
    "mph": Unit("每小时{}英里", "{} mile per hour", "{} miles per hour"),
    "mi": _unit("英里", "mile"),
    "ft": _unit("英尺", "foot", "feet"),
    "lb": _unit("磅", "pound"),
    "lbs": _unit("磅", "pound"),
    "oz": _unit("盎司", "ounce"),
    "μg": _unit("微克", "microgram"),
    "mg": _unit("毫克", "milligram"),
    "g": _unit("克", "gram"),
    "kg": _unit("千克", "kilogram"),
    "ml": _unit("毫升", "milliliter"),
    "mL": _unit("毫升", "milliliter"),
    "L": _unit("升", "liter"),
    "ms": _unit("毫秒", "millisecond"),
    "s": _unit("秒", "second"),
    "min": _unit("分钟", "minute"),
    "mins": _unit("分钟", "minute"),
    "h": _unit("小时", "hour"),
    "hr": _unit("小时", "hour"),
    "hrs": _unit("小时", "hour"),
    "Hz": _unit("赫兹", "hertz", "hertz"),
    "kHz": _unit("千赫兹", "kilohertz", "kilohertz"),
    "MHz": _unit("兆赫兹", "megahertz", "megahertz"),
    "GHz": _unit("吉赫兹", "gigahertz", "gigahertz"),
    "KB": _unit("KB", "kilobyte"),
    "MB": _unit("MB", "megabyte"),
    "GB": _unit("GB", "gigabyte"),
    "TB": _unit("TB", "terabyte"),
    "V": _unit("伏", "volt"),
    "kV": _unit("千伏", "kilovolt"),
    "mA": _unit("毫安", "milliamp"),
    "mAh": _unit("毫安时", "milliamp hour"),
    "W": _unit("瓦", "watt"),
    "kW": _unit("千瓦", "kilowatt"),
    "MW": _unit("兆瓦", "megawatt"),
    "kWh": _unit("千瓦时", "kilowatt hour"),
    "dB": _unit("分贝", "decibel"),
    "Pa": _unit("帕", "pascal"),
    "kPa": _unit("千帕", "kilopascal"),
    "hPa": _unit("百帕", "hectopascal"),
    "Ω": _unit("欧姆", "ohm"),
}

CURRENCIES: dict[str, Unit] = {
    "$": _unit("美元", "dollar"),
    "US$": _unit("美元", "US dollar"),
    "HK$": _unit("港元", "Hong Kong dollar"),
    "NT$": _unit("新台币", "New Taiwan dollar"),
    "A$": _unit("澳元", "Australian dollar"),
    "C$": _unit("加元", "Canadian dollar"),
    "S$": _unit("新加坡元", "Singapore dollar"),
    "¥": _unit("元", "yuan", "yuan"),
    "￥": _unit("元", "yuan", "yuan"),
    "RMB": _unit("元人民币", "yuan", "yuan"),
    "CNY": _unit("元人民币", "yuan", "yuan"),
    "€": _unit("欧元", "euro"),
    "£": _unit("英镑", "pound"),
    "₩": _unit("韩元", "won", "won"),
    "₹": _unit("卢比", "rupee"),
    "₽": _unit("卢布", "ruble"),
    "฿": _unit("泰铢", "baht", "baht"),
}

# Letters that count thousands behind an amount of money.
SCALES: dict[str, tuple[str, str]] = {
    "k": ("千", "thousand"),
    "K": ("千", "thousand"),
    "m": ("百万", "million"),
    "M": ("百万", "million"),
    "bn": ("十亿", "billion"),
    "b": ("十亿", "billion"),
    "B": ("十亿", "billion"),
    "thousand": ("千", "thousand"),
    "million": ("百万", "million"),
    "billion": ("十亿", "billion"),
    "trillion": ("万亿", "trillion"),
}

# Between two figures, or before one.
OPERATORS: dict[str, tuple[str, str]] = {
    "+": ("加", "plus"),
    "−": ("减", "minus"),
    "×": ("乘", "times"),
    "*": ("乘", "times"),
    "x": ("乘", "times"),
    "÷": ("除以", "divided by"),
    "=": ("等于", "equals"),
    "≠": ("不等于", "does not equal"),
    "<": ("小于", "is less than"),
    ">": ("大于", "is greater than"),
    "≤": ("小于等于", "at most"),
    "≥": ("大于等于", "at least"),
    "≈": ("约等于", "about"),
    "^": ("乘方", "to the power of"),
    "±": ("正负", "plus or minus"),
}

# Signs of an address, where a letter or digit stands on one side at least.
ADDRESS_SIGNS: dict[str, tuple[str, str]] = {
    ".": ("点", "dot"),
    "@": ("艾特", "at"),
    "/": ("斜杠", "slash"),
    "-": ("杠", "dash"),
    "_": ("下划线", "underscore"),
    ":": ("冒号", "colon"),
    "?": ("问号", "question mark"),
    "=": ("等于", "equals"),
    "&": ("和", "and"),
    "#": ("井号", "hash"),
    "%": ("百分号", "percent"),
    "+": ("加", "plus"),
    "~": ("波浪号", "tilde"),
}

MONTHS = (
    *("January", "February", "March", "April", "May", "June", "July"),
    *("August", "September", "October", "November", "December"),
)
CENTS = {"$": "cents", "US$": "cents", "A$": "cents", "C$": "cents", "€": "cents", "£": "pence"}
DECADES = {
    "00": "hundreds",
    "10": "tens", "20": "twenties", "30": "thirties", "40": "forties", "50": "fifties",
    "60": "sixties", "70": "seventies", "80": "eighties", "90": "nineties",
}  # fmt: skip

# Han that counts: after one of these a long run of digits is a number.
HAN_UNITS = (
    *"元块角毛人个只名件台辆架艘条张本次种家户吨斤克米升万亿股票字倍度天秒岁页套多余步艘头所座间户",
    *(
        "公里",
        "公斤",
        "公顷",
        "千米",
        "千克",
        "千瓦",
        "毫米",
        "毫升",
        "厘米",
        "平方",
        "平米",
        "立方",
    ),
    *(
        "美元",
        "英镑",
        "欧元",
        "日元",
        "港元",
        "港币",
        "韩元",
        "小时",
        "分钟",
        "年前",
        "光年",
        "英里",
    ),
)
# After these 2 is 两 for everybody; wetext knows many more of them.
TWO_OF = "台次种届倍盒瓶杯碗份篇首封组套双对点"
# Before these 2 is a name and stays 二, whatever wetext says.
TWO_AS_NAME = ("单元", "年级", "班", "路", "室", "楼", "号")
LATIN_UNITS = (
    *("dollars", "euros", "pounds", "yen", "yuan", "people", "persons", "users", "times", "years"),
    *("percent", "units", "copies", "votes", "shares", "miles", "meters", "kilometers", "tons"),
    *("million", "billion", "trillion", "views", "followers", "words", "characters", "lines"),
)
