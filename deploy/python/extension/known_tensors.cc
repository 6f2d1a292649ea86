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
                .shape = {}};
    const void* const data = data_of(*tensor);
    for (const nb::handle extent : nb::cast<nb::tuple>(given[2]))
      known.shape.push_back(nb::cast<std::uint64_t>(extent));
    if (!has_shape(*tensor, known.shape) ||
        data != reinterpret_cast<const void*>(nb::cast<std::uintptr_t>(given[5])))
      return std::nullopt;
    if (once && has_bytes(known.shape)) {
      const auto [at, is_new] =
          first.emplace(Memory{data, known.dtype, known.shape}, made.known_.size());
      if (!is_new) known.same_as = at->second;
    }
    made.known_.push_back(std::move(known));
    made.addresses_.push_back(data);
  }
  if (!made.shares_as_before(made.addresses_)) return std::nullopt;
  made.fill_parts();
  return made;
}

std::optional<dlpack::Tensor> KnownTensors::view(nb::handle tensor) const {
  const auto kind = std::ranges::find_if(kinds_, [&](const Kind& one) {
    return reinterpret_cast<PyObject*>(Py_TYPE(tensor.ptr())) == one.type.ptr();
  });
  if (kind == kinds_.end()) return std::nullopt;
  // DLPack cannot say it: the values may be those of the memory with the other sign. The call may
  // let other threads run, so it comes before the view, which they could make invalid.
  const nb::object negative =
      nb::steal(PyObject_CallFunctionObjArgs(kind->is_neg.ptr(), tensor.ptr(), nullptr));
  if (!negative.is_valid()) throw nb::python_error();
  if (!negative.is(nb::handle(Py_False))) return std::nullopt;
  dlpack::Tensor view{};
  if (kind->api->view_of(tensor.ptr(), &view) != 0) {
    PyErr_Clear();  // without memory, or of another layout: it is described in Python
    return std::nullopt;
  }
  constexpr std::uint8_t kComplex = 5;  // kDLComplex, whose values may be conjugated when read
  if (view.device.type != dlpack::kCpu || view.dtype.code == kComplex || !is_row_major(view))
    return std::nullopt;
  return view;
}

std::optional<nb::list> KnownTensors::read(nb::handle tensors) {
  // A list of pairs, in the order of the dict's type, that keeps names and tensors alive: other
  // threads may change the dict.
  PyObject* const items = PyMapping_Items(tensors.ptr());
  if (items == nullptr) throw nb::python_error();
  const auto held = nb::steal<nb::list>(items);
  if (held.size() != known_.size()) return std::nullopt;
  std::vector<const void*> addresses;
  addresses.reserve(known_.size());
  for (std::size_t i = 0; i < known_.size(); ++i) {
    const Known& known = known_[i];
    const nb::handle pair(PyList_GetItem(items, static_cast<Py_ssize_t>(i)));
    if (!is_same_text(PyTuple_GetItem(pair.ptr(), 0), known.name)) return std::nullopt;
    const auto found = view(PyTuple_GetItem(pair.ptr(), 1));
    if (!found || found->dtype != known.element || !has_shape(*found, known.shape))
      return std::nullopt;
    addresses.push_back(data_of(*found));
  }
  if (addresses != addresses_ && !shares_as_before(addresses)) return std::nullopt;
  addresses_ = std::move(addresses);
  fill_parts();
  return held;
}

bool KnownTensors::shares_as_before(std::span<const void* const> addresses) const {
  if (!once_) return true;
  std::vector<const void*> own;
  for (std::size_t i = 0; i < known_.size(); ++i) {
    const Known& known = known_[i];
    if (known.same_as != kNone && addresses[i] != addresses[known.same_as]) return false;
    if (known.same_as == kNone && has_bytes(known.shape)) own.push_back(addresses[i]);
  }
  std::ranges::sort(own, std::less<>());
  return std::ranges::adjacent_find(own) == own.end();
}

void KnownTensors::fill_parts() {
  parts_.clear();
  for (std::size_t i = 0; i < known_.size(); ++i) {
    const Known& known = known_[i];
    if (known.same_as != kNone) continue;
    parts_.push_back({.name = nb::cast<const char*>(known.name),
                      .dtype = known.dtype.c_str(),
                      .publish_dtype = nullptr,
                      .shape = known.shape.data(),
                      .shape_count = known.shape.size(),
                      .ranges = nullptr,
                      .range_count = 0,
                      .data = addresses_[i],
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
