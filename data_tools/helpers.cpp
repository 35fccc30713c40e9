// The hot loops of data_tools. Each function gives exactly the result of its Python twin.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace py = pybind11;

namespace {

constexpr int64_t kShortest = 2;                             // sample_map.SHORTEST
constexpr double kMaskBelow = 0.8, kRandomBelow = 0.8 + 0.1;  // dataset_utils.MASK_BELOW, RANDOM_BELOW
constexpr int64_t kLongestPeriod = 1000000;                  // mixture.LONGEST_PERIOD

template <typename Item>
using Array = py::array_t<Item, py::array::c_style>;

// splitmix64, as in hashing.py.
uint64_t mix(uint64_t value) {
  value += 0x9E3779B97F4A7C15ULL;
  value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
  value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
  return value ^ (value >> 31);
}

int64_t target_of(uint64_t row, int64_t target_length, uint64_t threshold, uint64_t stream) {
  const uint64_t draw = mix(stream + row);
  if (draw >= threshold) return target_length;
  return kShortest + static_cast<int64_t>(mix(draw) % static_cast<uint64_t>(target_length - kShortest + 1));
}

// Twin of sample_map.cut_documents.
py::array_t<int64_t> cut_documents(const Array<int64_t>& bounds, const Array<int32_t>& lens, int64_t target_length,
                                   uint64_t threshold, uint64_t stream, int64_t min_sentences) {
  const auto edge = bounds.unchecked<1>();
  const auto length = lens.unchecked<1>();
  for (py::ssize_t i = 0; i < edge.shape(0); ++i) {
    if (edge(i) < 0 || edge(i) > length.shape(0)) throw py::value_error("a document ends outside the sentences");
  }
  std::vector<int64_t> rows;
  {
    py::gil_scoped_release unlocked;
    uint64_t count = 0;
    int64_t target = target_of(0, target_length, threshold, stream);
    for (py::ssize_t document = 0; document + 1 < edge.shape(0); ++document) {
      const int64_t end = edge(document + 1);
      int64_t first = edge(document), tokens = 0;
      for (int64_t sentence = first; sentence < end; ++sentence) {
        tokens += length(sentence);
        const int64_t rest = end - sentence - 1;
        const bool full = tokens >= target && sentence + 1 - first >= min_sentences && rest != 1;
        if (!full && rest != 0) continue;
        rows.insert(rows.end(), {first, sentence + 1, target});
        first = sentence + 1;
        tokens = 0;
        target = target_of(++count, target_length, threshold, stream);
      }
    }
  }
  py::array_t<int64_t> result({static_cast<py::ssize_t>(rows.size() / 3), static_cast<py::ssize_t>(3)});
  std::memcpy(result.mutable_data(), rows.data(), rows.size() * sizeof(int64_t));
  return result;
}

// Twin of dataset_utils.word_spans, and the word that begins at each token (-1: none does).
struct Words {
  std::vector<int32_t> start, end, last_of_segment, beginning_at;
};

Words find_words(const int64_t* tokens, int32_t length, const bool* goes_on, int64_t cls_id, int64_t sep_id,
                 bool whole_words) {
  Words words;
  words.beginning_at.assign(length, -1);
  bool after_special = true;
  const auto end_segment = [&] {
    words.last_of_segment.resize(words.start.size(), static_cast<int32_t>(words.start.size()) - 1);
  };
  for (int32_t at = 0; at < length; ++at) {
    const bool special = tokens[at] == cls_id || tokens[at] == sep_id;
    if (special) {
      end_segment();
    } else if (after_special || !whole_words || !goes_on[tokens[at]]) {
      words.beginning_at[at] = static_cast<int32_t>(words.start.size());
      words.start.push_back(at);
      words.end.push_back(at + 1);
    } else {
      words.end.back() = at + 1;
    }
    after_special = special;
  }
  end_segment();
  return words;
}

// Twin of dataset_utils.choose_words over all the tokens: marks those to hide, returns how many.
int32_t choose_tokens(const Words& words, const int64_t* order, const double* lengths,
                      const std::vector<double>& borders, int64_t budget, std::vector<char>* hidden) {
  const auto size_of = [&](int32_t word) { return words.end[word] - words.start[word]; };
  const auto hide = [&](int32_t word) {
    std::fill(hidden->begin() + words.start[word], hidden->begin() + words.end[word], 1);
    return size_of(word);
  };
  int64_t left = budget;
  int32_t shortest = -1;
  const int32_t length = static_cast<int32_t>(hidden->size());
  for (int32_t turn = 0; turn < length && left > 0; ++turn) {
    const int32_t word = words.beginning_at[order[turn]];
    if (word < 0) continue;
    const double draw = lengths[order[turn]];
    const auto extra = std::upper_bound(borders.begin(), borders.end(), draw) - borders.begin();
    const int64_t last = std::min<int64_t>(word + extra, words.last_of_segment[word]);
    for (int32_t inner = word; inner <= last; ++inner) {
      if ((*hidden)[words.start[inner]] || size_of(inner) > left) break;
      left -= hide(inner);
    }
    if (shortest < 0 || size_of(word) < size_of(shortest)) shortest = word;
  }
  if (left < budget || shortest < 0) return static_cast<int32_t>(budget - left);
  return hide(shortest);
}

template <typename Item>
void require_shape(const Array<Item>& array, std::vector<py::ssize_t> shape, const char* what) {
  if (!std::equal(shape.begin(), shape.end(), array.shape(), array.shape() + array.ndim())) throw py::value_error(what);
}

// Twin of dataset_utils.hide_words: (ids, positions, labels).
py::tuple hide_words(const Array<int64_t>& tokens, const Array<int64_t>& order, const Array<double>& chances,
                     const Array<int64_t>& plain_of, const Array<bool>& goes_on, const Array<int64_t>& random_ids,
                     const Array<double>& borders, int64_t cls_id, int64_t sep_id, int64_t mask_id, bool whole_words,
                     int64_t budget) {
  const py::ssize_t length = tokens.size(), vocab = plain_of.size(), choices = random_ids.size();
  require_shape(tokens, {length}, "tokens must be 1-D");
  require_shape(order, {length}, "order must have a place for each token");
  require_shape(chances, {3, length}, "chances must be [3, tokens]");
  require_shape(goes_on, {vocab}, "goes_on must have an entry for each id");
  const int64_t *token = tokens.data(), *place = order.data();
  for (py::ssize_t i = 0; i < length; ++i) {
    if (token[i] < 0 || token[i] >= vocab) throw py::index_error("a token id is outside the vocabulary");
    if (place[i] < 0 || place[i] >= length) throw py::index_error("order leaves the tokens");
  }
  const double *sizes = chances.data(), *kinds = sizes + length, *others = kinds + length;
  const std::vector<double> edges(borders.data(), borders.data() + borders.size());
  std::vector<char> hidden(length, 0);
  const Words words = find_words(token, static_cast<int32_t>(length), goes_on.data(), cls_id, sep_id, whole_words);
  const int32_t count = choose_tokens(words, place, sizes, edges, budget, &hidden);
  if (count && !choices) throw py::index_error("there are no random ids to draw");
  py::array_t<int64_t> ids(length), positions(count), labels(count);
  int64_t *shown = ids.mutable_data(), *position = positions.mutable_data(), *label = labels.mutable_data();
  for (py::ssize_t i = 0; i < length; ++i) {
    const int64_t plain = shown[i] = plain_of.data()[token[i]];
    if (!hidden[i]) continue;
    *position++ = i;
    *label++ = plain;
    if (kinds[i] < kMaskBelow) {
      shown[i] = mask_id;
    } else if (kinds[i] < kRandomBelow) {
      if (!(others[i] >= 0 && others[i] < 1)) throw py::index_error("a draw is not in [0, 1)");
      shown[i] = random_ids.data()[static_cast<py::ssize_t>(others[i] * static_cast<double>(choices))];
    }
  }
  return py::make_tuple(ids, positions, labels);
}

// Twin of mixture.turns.
py::array_t<uint16_t> turns(const Array<int64_t>& parts) {
  const py::ssize_t corpora = parts.size();
  const int64_t* part = parts.data();
  int64_t period = 0;
  for (py::ssize_t corpus = 0; corpus < corpora; ++corpus) {
    if (part[corpus] <= 0 || part[corpus] > kLongestPeriod) throw py::value_error("a part is out of range");
    period += part[corpus];
  }
  if (period > kLongestPeriod || corpora > UINT16_MAX) throw py::value_error("too many parts");
  std::vector<int64_t> given(corpora, 0);
  py::array_t<uint16_t> result(period);
  for (int64_t turn = 0; turn < period; ++turn) {
    py::ssize_t chosen = -1;
    int64_t first_deadline = 0;
    for (py::ssize_t corpus = 0; corpus < corpora; ++corpus) {
      if (given[corpus] * period >= part[corpus] * (turn + 1)) continue;
      const int64_t deadline = ((given[corpus] + 1) * period + part[corpus] - 1) / part[corpus];
      if (chosen >= 0 && deadline >= first_deadline) continue;
      chosen = corpus;
      first_deadline = deadline;
    }
    result.mutable_data()[turn] = static_cast<uint16_t>(chosen);
    ++given[chosen];
  }
  return result;
}

}  // namespace

PYBIND11_MODULE(_helpers, module) {
  module.doc() = "Compiled twins of the hot loops of data_tools.";
  module.def("cut_documents", &cut_documents, py::arg("bounds").noconvert(), py::arg("lens").noconvert(),
             py::arg("target_length"), py::arg("threshold"), py::arg("stream"), py::arg("min_sentences"));
  module.def("hide_words", &hide_words, py::arg("tokens").noconvert(), py::arg("order").noconvert(),
             py::arg("chances").noconvert(), py::arg("plain_of").noconvert(), py::arg("goes_on").noconvert(),
             py::arg("random_ids").noconvert(), py::arg("borders").noconvert(), py::arg("cls_id"), py::arg("sep_id"),
             py::arg("mask_id"), py::arg("whole_words"), py::arg("budget"));
  module.def("turns", &turns, py::arg("parts").noconvert());
}
