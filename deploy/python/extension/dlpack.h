// What is used of DLPack's C exchange API, as the DLPack specification (1.3, "C exchange API") and
// the Python array API standard (`__dlpack_c_exchange_api__`) define it. A type of arrays offers it
// as a capsule, and its first major version is understood here. The layouts are fixed by the
// standard.
#pragma once

#include <cstdint>
#include <nanobind/nanobind.h>

namespace wsync::python::dlpack {

inline constexpr std::int32_t kCpu = 1;  // kDLCPU
inline constexpr std::uint32_t kMajor = 1;
inline constexpr const char* kAttribute = "__dlpack_c_exchange_api__";
inline constexpr const char* kCapsule = "dlpack_exchange_api";

struct Device {
  std::int32_t type;
  std::int32_t id;
};

struct DType {
  std::uint8_t code;
  std::uint8_t bits;
  std::uint16_t lanes;
  friend bool operator==(const DType&, const DType&) = default;
};

// A view of an array. Shape and strides, in elements, belong to the array.
struct Tensor {
  void* data;
  Device device;
  std::int32_t dimensions;
  DType dtype;
  std::int64_t* shape;
  std::int64_t* strides;  // null: row-major order
  std::uint64_t byte_offset;
};

struct ExchangeApi {
  std::uint32_t major;
  std::uint32_t minor;
  ExchangeApi* older;
  void* allocate;
  void* from_object;
  void* to_object;
  // Fills in a view of an object of exactly the type that offers the API. Returns 0, or -1 with a
  // Python exception. Needs the GIL.
  int (*view_of)(void* object, Tensor* view);
  void* current_stream;
};

// The API of a type. Null if it offers none that is understood. Needs the GIL.
[[nodiscard]] const ExchangeApi* api_of(nanobind::handle type);

}  // namespace wsync::python::dlpack
