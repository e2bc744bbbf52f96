#pragma once

#include <penstock/cpu_adam/state_format.hpp>

#include <map>
#include <string>

namespace penstock::bench {

/// By the names that options give them.
inline const std::map<std::string, StateFormat> state_formats = {{"fp32", StateFormat::fp32},
                                                                 {"split", StateFormat::split},
                                                                 {"split_bf16", StateFormat::split_bf16},
                                                                 {"split_q8", StateFormat::split_q8}};

}  // namespace penstock::bench
