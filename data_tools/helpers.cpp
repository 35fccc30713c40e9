// The hot loops of data_tools. Each function gives the very answer of its Python twin.

#include <pybind11/numpy.h>
#include <pybind11/pybind11.h>

#include <cstdint>
#include <cstring>
#include <vector>

namespace py = pybind11;

namespace {

constexpr int64_t kShortest = 2;

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

}  // namespace

PYBIND11_MODULE(_helpers, module) {
  module.doc() = "Compiled twins of the hot loops of data_tools.";
  module.def("cut_documents", &cut_documents, py::arg("bounds").noconvert(), py::arg("lens").noconvert(),
             py::arg("target_length"), py::arg("threshold"), py::arg("stream"), py::arg("min_sentences"));
}
