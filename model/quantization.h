// "quantization_config" in config.json: checkpoints in eight bits, as transformers reads them.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "base/result.h"
#include "model/config.h"

namespace weft {

/// `where` is for messages. Errors (input): a method or a number format other than fp8 in e4m3,
/// blocks other than 128 x 128, a rule for activations that nobody has, a field that is missing or
/// no such thing.
Result<Quantization> read_quantization(const nlohmann::json& object, const std::string& where);

/// What read_quantization() reads back and transformers loads.
nlohmann::ordered_json write_quantization(const Quantization& quantization);

/// The name that a matrix's scales have in the checkpoint ("....weight_scale_inv").
std::string scale_name(const Quantization& quantization, std::string_view weight);
/// That which the scales of experts in MXFP4 have, whose codes are "..._blocks".
std::string mx_scale_name(std::string_view codes);
/// That of the scale of the activations that it meets (Scaling::tensor).
std::string input_scale_name(std::string_view weight);

/// The forms that `weft new-model --format` writes: "fp8-block", "fp8-row" (fbgemm), "fp8-channel"
/// and "fp8-tensor" (compressed-tensors, with dynamic and static activations). Error (usage):
/// another name, lists these.
Result<Quantization> quantization_of(std::string_view format);

}  // namespace weft
