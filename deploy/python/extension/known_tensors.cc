#include "deploy/python/extension/known_tensors.h"

#include <algorithm>
#include <functional>
#include <map>
#include <nanobind/stl/optional.h>
#include <utility>

namespace nb = nanobind;

namespace wsync::python {
namespace {

bool is_row_major(const dlpack::Tensor& view) {
  if (view.strides == nullptr) return true;
  std::int64_t expected = 1;
  for (std::int32_t i = view.dimensions; i-- > 0;) {
    if (view.shape[i] != 1 && view.strides[i] != expected) return false;
    expected *= view.shape[i];
  }
  return true;
}

bool has_shape(const dlpack::Tensor& view, std::span<const std::uint64_t> shape) {
  if (static_cast<std::size_t>(view.dimensions) != shape.size()) return false;
  for (std::size_t i = 0; i < shape.size(); ++i)
    if (static_cast<std::uint64_t>(view.shape[i]) != shape[i]) return false;
  return true;
}

const void* data_of(const dlpack::Tensor& view) {
  return static_cast<const std::byte*>(view.data) + view.byte_offset;
}

bool has_bytes(std::span<const std::uint64_t> shape) {
  return std::ranges::find(shape, 0U) == shape.end();
}

// Of names, most of which are the same objects in each publish.
bool is_same_text(nb::handle a, nb::handle b) {
  if (a.is(b)) return true;
  if (PyUnicode_Check(a.ptr()) == 0) return false;
  const int order = PyUnicode_Compare(a.ptr(), b.ptr());
  if (PyErr_Occurred() != nullptr) throw nb::python_error();
  return order == 0;
}

}  // namespace

std::optional<KnownTensors> KnownTensors::make(const nb::list& described, const nb::tuple& types,
                                               bool once) {
  KnownTensors made;
  made.once_ = once;
  for (const nb::handle type : types) {
    const dlpack::ExchangeApi* api = dlpack::api_of(type);
    if (api == nullptr) return std::nullopt;
    made.kinds_.push_back({.type = nb::borrow(type), .is_neg = type.attr("is_neg"), .api = api});
  }
  using Memory = std::tuple<const void*, std::string, std::vector<std::uint64_t>>;
  std::map<Memory, std::size_t> first;
  for (const nb::handle one : described) {
    const auto given = nb::cast<nb::tuple>(one);
    const bool whole =
        nb::cast<nb::tuple>(given[3]).size() == 0 && !given[5].is_none() && given[6].is_none();
    const auto tensor = whole ? made.view(given[4]) : std::nullopt;
    if (!tensor) return std::nullopt;
    Known known{.name = nb::borrow(given[0]),
                .dtype = nb::cast<std::string>(given[1]),
                .element = tensor->dtype,
                .shape = {},
                .data = data_of(*tensor)};
    for (const nb::handle extent : nb::cast<nb::tuple>(given[2]))
      known.shape.push_back(nb::cast<std::uint64_t>(extent));
    if (!has_shape(*tensor, known.shape) ||
        known.data != reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(given[5])))
      return std::nullopt;
    if (once && has_bytes(known.shape)) {
      const auto [at, is_new] =
          first.emplace(Memory{known.data, known.dtype, known.shape}, made.known_.size());
      if (!is_new) known.same_as = at->second;
    }
    made.known_.push_back(std::move(known));
  }
  if (!made.shares_as_before()) return std::nullopt;
  made.fill_parts();
  return made;
}

std::optional<dlpack::Tensor> KnownTensors::view(nb::handle tensor) const {
  const auto kind = std::ranges::find_if(kinds_, [&](const Kind& one) {
    return reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr())) == one.type.ptr();
  });
  if (kind == kinds_.end()) return std::nullopt;
  dlpack::Tensor view{};
  if (kind->api->view_of(tensor.ptr(), &view) != 0) {
    PyErr_Clear();  // without memory, or of another layout: it is described in Python
    return std::nullopt;
  }
  constexpr std::uint8_t kComplex = 5;  // kDLComplex, whose values may be conjugated when read
  if (view.device.type != dlpack::kCpu || view.dtype.code == kComplex || !is_row_major(view))
    return std::nullopt;
  // DLPack cannot say it: the values may be those of the memory with the other sign.
  const nb::object negative =
      nb::steal(PyObject_CallFunctionObjArgs(kind->is_neg.ptr(), tensor.ptr(), nullptr));
  if (!negative.is_valid()) throw nb::python_error();
  if (!negative.is(nb::handle(Py_False))) return std::nullopt;
  return view;
}

bool KnownTensors::read(const nb::dict& tensors) {
  if (tensors.size() != known_.size()) return false;
  bool moved = false;
  std::size_t at = 0;
  Py_ssize_t place = 0;
  PyObject* name = nullptr;
  PyObject* tensor = nullptr;
  while (PyDict_Next(tensors.ptr(), &place, &name, &tensor) != 0) {
    // A method of the tensor could have changed the dict.
    if (at == known_.size()) return false;
    Known& known = known_[at++];
    if (!is_same_text(name, known.name)) return false;
    const auto found = view(tensor);
    if (!found || found->dtype != known.element || !has_shape(*found, known.shape)) return false;
    const void* const data = data_of(*found);
    moved = moved || data != known.data;
    known.data = data;
  }
  if (at != known_.size() || (moved && !shares_as_before())) return false;
  fill_parts();
  return true;
}

bool KnownTensors::shares_as_before() const {
  if (!once_) return true;
  std::vector<const void*> own;
  for (const Known& known : known_) {
    if (known.same_as != kNone && known.data != known_[known.same_as].data) return false;
    if (known.same_as == kNone && has_bytes(known.shape)) own.push_back(known.data);
  }
  std::ranges::sort(own, std::less<>());
  return std::ranges::adjacent_find(own) == own.end();
}

void KnownTensors::fill_parts() {
  parts_.clear();
  for (const Known& known : known_) {
    if (known.same_as != kNone) continue;
    parts_.push_back({.name = nb::cast<const char*>(known.name),
                      .dtype = known.dtype.c_str(),
                      .publish_dtype = nullptr,
                      .shape = known.shape.data(),
                      .shape_count = known.shape.size(),
                      .ranges = nullptr,
                      .range_count = 0,
                      .data = known.data,
                      .scales = nullptr,
                      .scale_count = 0,
                      .compute_scales = 0,
                      .data_on = WSYNC_DEVICE_HOST,
                      .gpu = 0,
                      .stream = nullptr});
  }
}

void bind_known_tensors(nb::module_& module) {
  nb::class_<KnownTensors>(module, "KnownTensors")
      .def_static("make", &KnownTensors::make, nb::arg("described"), nb::arg("types"),
                  nb::arg("once"))
      .def("read", &KnownTensors::read, nb::arg("tensors"));
}

}  // namespace wsync::python
