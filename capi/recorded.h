// Devices that are not there: they plan launches and write them down.
#pragma once

#include <memory>
#include <string_view>

#include "arch/device.h"
#include "base/result.h"

namespace weft::capi {

/// "gfx942" or "gfx950". Has no memory and runs nothing.
Result<std::unique_ptr<Device>> open_recorded(std::string_view target);

}  // namespace weft::capi
