"""The bodies of requests and of answers, which FastAPI checks and /openapi.json describes.

A field of null is as good as none, and one that a route does not know is refused.
"""

import json
from typing import Annotated, Any, Dict, List, Literal, Optional, Type, Union

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints

from ernie_pair.inference.scores import Window

RELOAD = "/admin/reload"
TOP_K = 10  # if a request does not say how many it wants
_IDS = (
    "token ids are not taken; send texts: this model has another tokenizer than OpenAI's, which LangChain's "
    "client is told with check_embedding_ctx_length=False"
)


def _list_texts(given: Any) -> Any:
    """Return OpenAI's ``input`` as a list; a single text stands alone."""
    if isinstance(given, list) and any(isinstance(each, (int, list)) for each in given):
        raise ValueError(_IDS)
    return [given] if isinstance(given, str) else given


def _take_text(document: Any) -> Any:
    """Return the text of a document, which may be {"text": "..."}."""
    return document["text"] if isinstance(document, dict) and set(document) == {"text"} else document


class Document(BaseModel):
    """A document of Cohere's and Jina's clients."""

    text: str


# At least one character that is no control character and no space.
Text = Annotated[str, StringConstraints(pattern=r"[^\p{C}\p{Z}]")]
Texts = Annotated[List[Text], Field(min_length=1)]
Pair = Annotated[List[Text], Field(min_length=2, max_length=2)]
AnyDocument = Annotated[Text, BeforeValidator(_take_text, json_schema_input_type=Union[str, Document])]
ModelName = Annotated[
    Optional[str], Field(description="the name of the model, as in /v1/models; may be left out")
]


def _example(**fields: Any) -> ConfigDict:
    return ConfigDict(json_schema_extra={"example": fields})


class Body(BaseModel):
    """The body of a request."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)

    @classmethod
    def example(cls) -> str:
        """Return a body that the route takes, as JSON."""
        extra: Any = cls.model_config["json_schema_extra"]
        return json.dumps(extra["example"], ensure_ascii=False)


class PredictBody(Body):
    """Pairs of texts to classify, or to score."""

    model_config = _example(pairs=[["怎么注销信用卡", "如何注销信用卡"]])

    pairs: Annotated[List[Pair], Field(min_length=1)]


class ExplainBody(Body):
    """A pair of texts, whose score is explained."""

    model_config = _example(text_a="怎么注销信用卡", text_b="如何注销信用卡")

    text_a: Text
    text_b: Text


class RankBody(Body):
    """Candidates to rank by how well they match a query."""

    model_config = _example(query="怎么注销信用卡", candidates=["如何注销信用卡", "再见"])

    query: Text
    candidates: Texts
    top_k: Optional[int] = Field(None, ge=1, description=f"how many of the best; {TOP_K} if left out")


class SearchBody(Body):
    """A query, whose answers are looked for in the index."""

    model_config = _example(query="怎么注销信用卡")

    query: Text
    top_k: Optional[int] = Field(
        None, ge=1, description=f"hits wanted, at most the --recall_k of the service; {TOP_K} if left out"
    )
    threshold: Optional[float] = Field(
        None, description="hits that score less are left out: a probability, without classes a score"
    )
    where: Optional[Dict[str, str]] = Field(
        None, description="only texts with which all these values of columns ride along are searched"
    )


class EmbeddingsBody(Body):
    """Texts to embed, as OpenAI's clients send them."""

    model_config = _example(input=["怎么注销信用卡", "再见"])

    input: Annotated[Texts, BeforeValidator(_list_texts, json_schema_input_type=Union[str, List[str]])]
    model: ModelName = None
    encoding_format: Optional[Literal["float", "base64"]] = Field(None, description="float if left out")
    dimensions: Optional[int] = Field(None, ge=1, description="numbers of a vector")
    user: Optional[str] = Field(None, description="has no effect")


class RerankBody(Body):
    """Documents to rank, as the clients of Cohere and Jina send them."""

    model_config = _example(query="怎么注销信用卡", documents=["如何注销信用卡", "再见"])

    query: Text
    documents: Annotated[List[AnyDocument], Field(min_length=1)]
    top_n: Optional[int] = Field(None, ge=1, description="how many of the best; all if left out")
    return_documents: Optional[bool] = Field(None, description="by default true for /v1, false for /v2")
    max_tokens_per_doc: Optional[int] = Field(None, description="not below the tokens that the model reads")
    model: ModelName = None


class RerankTextsBody(Body):
    """Texts to rank, as the clients of text-embeddings-inference (TEI) send them."""

    model_config = _example(query="怎么注销信用卡", texts=["如何注销信用卡", "再见"])

    query: Text
    texts: Texts
    return_text: Optional[bool] = Field(None, description="whether the answer repeats the texts")
    raw_scores: Optional[bool] = Field(
        None, description="only false: scores are probabilities where there are"
    )
    truncate: Optional[bool] = Field(None, description="false: refuse a text that would be cut")
    truncation_direction: Optional[Literal["Right", "right"]] = Field(None, description="always right")


_SECONDS = Field(description="from the request to the answer, the queue included")


class PredictAnswer(BaseModel):
    """One label and one list of probabilities for each pair, in the order of the pairs.

    A model without classes, see `target` of /health, gives one score for each pair instead.
    """

    labels: Optional[List[str]] = Field(
        None, description="the name of the class of each pair; absent without classes"
    )
    classes: Optional[List[int]] = Field(None, description="the index of that class; absent without classes")
    scores: Union[List[List[float]], List[float]] = Field(
        description="the probability of each class, in the order of `labels` of /health; without classes "
        "the score"
    )
    milliseconds: float = _SECONDS


_BEST = Field(None, description="of a text that is longer than a model reads: its characters that match best")


class Place(BaseModel):
    """A candidate and how well it matches the query."""

    place: int = Field(description="its position in the given `candidates`, counted from 0")
    text: str = Field(description="the candidate")
    score: float = Field(description="a probability, without classes a score")
    window: Optional[Window] = _BEST


class RankedText(BaseModel):
    """A text and how well it matches the query, as the clients of TEI read it."""

    index: int = Field(description="its position in the given `texts`, counted from 0")
    score: float = Field(description="a probability, without classes a score")
    text: Optional[str] = Field(None, description="absent if it was not asked for")
    window: Optional[Window] = _BEST


class Ranking(BaseModel):
    """The best candidates, the best first; ties in the given order."""

    ranking: List[Place] = Field(description="at most top_k of them")
    milliseconds: float = _SECONDS


class Found(BaseModel):
    """A text of the index that may answer the query."""

    id: str = Field(description="its id in the file of texts, or its line number from 0")
    text: str = Field(description="the text")
    score: float = Field(description="how well it matches the query: a probability, without classes a score")
    similarity: Optional[float] = Field(
        description="the cosine of the embeddings; null: not found by the index's vectors"
    )
    bm25: Optional[float] = Field(None, description="its BM25 score; absent: not found by its words")
    probability: Optional[float] = Field(
        None, description="that it answers, as measured with the index; absent: it was not"
    )
    payload: Optional[Dict[str, str]] = Field(
        None, description="the columns that ride along with it, such as its answer; absent: none"
    )
    window: Optional[Window] = _BEST


class Hits(BaseModel):
    """The best texts of the index, best first; of those with the same answer the best alone."""

    hits: List[Found] = Field(
        description="at most top_k of them, those below the threshold left out: of the request, or that "
        "saved with the index"
    )
    answered: bool = Field(description="whether there is a hit; false: no text answers")
    milliseconds: float = _SECONDS


class Embedding(BaseModel):
    """The vector of one text."""

    object: Literal["embedding"]
    index: int
    embedding: Union[List[float], str] = Field(description="numbers, or base64 of little-endian float32")


class Embeddings(BaseModel):
    """The vectors of the texts, in their order, as OpenAI's clients read them."""

    object: Literal["list"]
    data: List[Embedding]
    model: str = Field(description="the name of the model")
    usage: Dict[str, int] = Field(description="the tokens that the model has read")


class Reranked(BaseModel):
    """A document, by its index among those given."""

    index: int
    relevance_score: float
    document: Optional[Document] = Field(None, description="absent if it was not asked for")
    window: Optional[Window] = _BEST


class Reranking(BaseModel):
    """The best documents, the best first, as the clients of Cohere and Jina read them."""

    id: str = Field(description="another one for each answer")
    model: str = Field(description="the name of the model")
    results: List[Reranked]


class Model(BaseModel):
    """A model that is served, as OpenAI's clients read it."""

    id: str = Field(description="its name: that of its folder")
    object: str = "model"
    created: int = Field(description="when the service was started, in seconds of Unix time")
    owned_by: str = "ernie-pair"


class Models(BaseModel):
    """The models that are served."""

    object: str = "list"
    data: List[Model]


class Version(BaseModel):
    """A model that is served."""

    name: str
    fingerprint: str = Field(description="a hash of all that its answers depend on; its beginning is x-model")
    version: str = Field(description="the version of ernie-pair that exported it; empty: not known")
    date: str = Field(description="when its export was written, in UTC; empty: it was not exported")


class Reloaded(BaseModel):
    """The models that are served from now on."""

    models: List[Version]


class Health(BaseModel):
    """The state of the service, and what it serves; what is of a classifier is null without one."""

    status: str = Field(description="ok or stopping")
    models: List[str] = Field(description="the names of the models, as in /v1/models")
    versions: List[Version] = Field(description="which models these are")
    backend: Optional[str] = Field(None, description="onnx, paddle or onnx-int8")
    precision: Optional[str] = Field(None, description="of the products: fp32, bf16, or int8")
    target: Optional[str] = Field(None, description="classification, regression or ranking")
    label_range: Optional[List[float]] = Field(
        None, description="the lowest and the highest score, where known"
    )
    labels: Optional[List[str]] = Field(None, description="the names of the classes; score if there are none")
    match: Optional[int] = Field(None, description="of two classes the one of pairs that match")
    verdict: Optional[str] = Field(
        None, description="what classifier and search are worth, in a sentence; null: it was not measured"
    )
    caution: Optional[str] = Field(None, description="why the model is no better than without training")
    max_seq_len: Optional[int] = Field(None, description="tokens per pair; longer pairs are cut")
    temperature: Optional[float] = Field(None, description="what the logits are divided by")
    threshold: Optional[float] = Field(None, description="pairs of this probability or more are of class 1")
    symmetric: Optional[str] = Field(
        None, description="average: both orders of a pair are scored; none: the given one"
    )
    vector_length: Optional[int] = Field(None, description="numbers of a vector; null: no embedding model")
    waiting_pairs: int = Field(description="pairs and texts in the queue")
    failed_calls: int = Field(description="calls of a model that failed since the start, answered with 500")
    indexed_texts: Optional[int] = Field(
        None, description="texts that /search looks through; null: it has no index"
    )
    example: Optional[str] = Field(None, description="the first of these texts")


class Refusal(BaseModel):
    """The reason why a request was not answered."""

    error: str = Field(description="what is wrong, and how to fix it, in one line")


class OpenAIRefusal(BaseModel):
    """The reason why a request was not answered, as OpenAI's clients read it."""

    error: Dict[str, Optional[str]] = Field(description="message, type, param and code")


class CohereRefusal(BaseModel):
    """The reason why a request was not answered, as Cohere's clients read it."""

    message: str


RELOAD_REFUSALS = {
    403: "The service has no key: nobody may ask for it here.",
    409: "What is there now cannot be opened, or answers in another form; the service goes on as it was.",
}
_REFUSALS = {
    400: "The body is empty, or not JSON; under /v1 and /v2 also JSON that is not of the expected form.",
    401: "The service has a key, and the request another one or none.",
    408: "The body did not arrive in time.",
    413: "Too many bytes, pairs, candidates or characters.",
    415: "The body has a Content-Encoding other than gzip.",
    421: "The service does not accept the Host header.",
    422: "JSON, but not of the expected form; 400 under /v1 and /v2.",
    500: "The model failed.",
    503: "Too many pairs are waiting, or the service is stopping; try again after Retry-After seconds.",
}


def describe_refusals(path: str) -> Dict[Union[int, str], Dict[str, Any]]:
    """Return the answers of a route other than 200, as FastAPI's ``responses``."""
    forms = {"/v1/": OpenAIRefusal, "/v2/": CohereRefusal}
    model, refusals = forms.get(path[:4], Refusal), RELOAD_REFUSALS if path == RELOAD else _REFUSALS
    return {code: {"model": model, "description": words} for code, words in refusals.items()}


_TRIED: Dict[str, Type[Body]] = {
    "/predict": PredictBody,
    "/v1/embeddings": EmbeddingsBody,
    "/search": SearchBody,
}


def curl_line(address: str, path: str = "/predict", key: str = "") -> str:
    """Return a command that asks the service at ``address``; ``key``: the environment variable of its key."""
    header = f' -H "Authorization: Bearer ${key}"' if key else ""
    return f"curl {address}{path}{header} -d '{_TRIED[path].example()}'"
