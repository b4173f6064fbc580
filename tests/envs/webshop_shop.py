"""A small hand-made shop for tests: odd products, a catalogue and a search engine on lists."""

from istar_envs.webshop.nouns import light_nouns
from istar_envs.webshop.products import Goal, OptionGroup, Product
from istar_envs.webshop.shop import Shop


def make_product(asin, title="Plain Thing", **changes):
    """A product with sensible values for everything that a test does not care about."""
    facts = {
        "description": f"About {title}.",
        "bullets": ("first feature", "second feature"),
        "category": "garden",
        "query": "things",
        "breadcrumb": "Home › Things › Plain",
        "prices": (9.5,),
        "is_priced": True,
        "image": f"https://pictures.example/{asin}.jpg",
        "rating": 4.5,
        "options": (),
        "attributes": ("sturdy", "light weight"),
    }
    return Product(asin=asin, title=title, **{**facts, **changes})


def make_option(name, *values, images=()):
    """An option group; pictures only where given."""
    return OptionGroup(name, values, images or ("",) * len(values))


def make_goal(product, text="Find me a red lamp, and price lower than 40.00 dollars", **changes):
    """A goal on a product."""
    facts = {
        "index": 0,
        "kind": "synthetic",
        "attributes": ("sturdy",),
        "options": (("color", "red"),),
        "price_upper": 40.0,
    }
    return Goal(target=product, text=text, **{**facts, **changes})


LAMP = make_product(
    "B000000001",
    "Acme Red Lamp",
    prices=(9.98, 12.98),
    options=(
        make_option("color", "red", "blue", images=("https://pictures.example/red.jpg", "")),
        make_option("size", "small", "large"),
    ),
)
"""Two options that share no value; one value has a picture."""

ODD = make_product(
    "B000000002",
    "Acme Odd Lamp  ",
    description="",
    bullets=("", "  padded  "),
    prices=(100.0,),
    is_priced=False,
    rating=None,
    options=(
        make_option("color", "red", "", "buy now", 'say "hi"', "größe", "red", "color: red", "a  b"),
        make_option("trim", "red", "x [y]", "tab\there"),
    ),
)
"""Shared, empty and repeated values, one that is a button's text, quotes, brackets, odd spaces."""

PRODUCTS = (
    LAMP,
    ODD,
    *(make_product(f"B0000001{i:02}", f"Lamp Number {i}", prices=(i + 0.5,)) for i in range(22)),
    make_product("b00000020x", "Garden Chair"),
)


class ListCatalog:
    """Products in a list."""

    name = "hand-made"

    def __init__(self, products=PRODUCTS):
        self._products = products
        self._rows = {product.asin.lower(): row for row, product in enumerate(products)}

    def __len__(self):
        return len(self._products)

    def product(self, row):
        return self._products[row]

    def asin(self, row):
        return self._products[row].asin

    def row(self, asin):
        return self._rows.get(asin.lower())


class WordEngine:
    """Ranks by the number of query words in a product's text, then by row."""

    def __init__(self, catalog):
        self._words = [set(catalog.product(row).search_text.split()) for row in range(len(catalog))]

    def search(self, query, k=50):
        wanted = set(query.split())
        counts = [(-len(wanted & words), row) for row, words in enumerate(self._words)]
        return tuple(row for count, row in sorted(counts) if count)[:k]


class ListGoals:
    """One goal per product; the price that counts is the lower bound."""

    kind, seed = "synthetic", 0

    def __init__(self, catalog):
        self._catalog = catalog

    def __len__(self):
        return len(self._catalog)

    def goal(self, index):
        product = self._catalog.product(index)
        return make_goal(product, f"Find me a {product.title.strip().lower()}", index=index)

    def price(self, product):
        return product.prices[0]


def small_shop(scoring="compat", products=PRODUCTS, **changes):
    """A shop of 25 products: 24 of them are lamps, so that the search for "lamp" has three pages."""
    catalog = ListCatalog(products)
    return Shop(
        catalog=catalog,
        engine=WordEngine(catalog),
        goals=ListGoals(catalog),
        scoring=scoring,
        tagger=light_nouns,
        **changes,
    )
