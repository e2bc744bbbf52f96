#pragma once

#include <penstock/cpu_adam/state_format.hpp>

#include <map>
#include <string>

namespace penstock::bench {

/// State formats by their command-line names.
inline const std::map<std::string, cpu_adam::StateFormat> state_formats = {
    {"fp32", cpu_adam::StateFormat::fp32},
    {"split", cpu_adam::StateFormat::split},
    {"split_bf16", cpu_adam::StateFormat::split_bf16},
    {"split_q8", cpu_adam::StateFormat::split_q8},
    {"moments", cpu_adam::StateFormat::moments},
    {"moments_bf16", cpu_adam::StateFormat::moments_bf16}};

}  // namespace penstock::bench
