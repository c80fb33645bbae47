// The operations of the C interface, by name.
#pragma once

#include <string>
#include <string_view>

#include "arch/device.h"
#include "base/result.h"

namespace weft::capi {

/// An operation on a caller's structure of arguments (weft_gemm_args and its like).
struct Operation {
  std::string_view name;
  Status (*run)(const void* args, Stream stream);
  Result<size_t> (*workspace)(const void* args, Stream stream);
  Result<std::string> (*plan)(const void* args, Stream stream);
};

/// Error (usage): there is none of this name; the sentence says which there are.
Result<const Operation*> operation_named(const char* name);

}  // namespace weft::capi
