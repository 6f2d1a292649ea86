#include "deploy/python/extension/dlpack.h"

namespace wsync::python::dlpack {

const ExchangeApi* api_of(nanobind::handle type) {
  const nanobind::object capsule = nanobind::getattr(type, kAttribute, nanobind::none());
  if (PyCapsule_IsValid(capsule.ptr(), kCapsule) == 0) return nullptr;
  const auto* api = static_cast<ExchangeApi*>(PyCapsule_GetPointer(capsule.ptr(), kCapsule));
  while (api != nullptr && api->major != kMajor) api = api->older;
  return api != nullptr && api->view_of != nullptr ? api : nullptr;
}

}  // namespace wsync::python::dlpack
