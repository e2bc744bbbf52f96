#pragma once

#include "handle.hpp"

#include <penstock/penstock.h>

#include <cstdint>
#include <memory>
#include <string>

namespace penstock::python {

/// penstock._core.DeviceAdam.
class DeviceAdam {
 public:
  DeviceAdam(const std::string& device, std::int32_t ordinal);
  [[nodiscard]] std::shared_ptr<penstock_device_adam> get(const char* function) const {
    return handle_.get(function);
  }

 private:
  Handle<penstock_device_adam, penstock_device_adam_free> handle_;
};

}  // namespace penstock::python
