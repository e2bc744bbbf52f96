#pragma once

#include <fmt/format.h>
#include <json/json.h>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>

namespace penstock::bench {

/// The side of bench/peers/turns.py that runs in this program: runs `round` for each line of standard input and
/// prints its figures as a line of JSON. Returns when standard input ends or a round returns nothing.
template <class Round>
void serve_turns(Round&& round) {
  Json::StreamWriterBuilder builder;
  builder["indentation"] = "";
  for (std::string line; std::getline(std::cin, line);) {
    const std::optional<Json::Value> figures = round();
    if (!figures) return;
    fmt::print("{}\n", Json::writeString(builder, *figures));
    std::fflush(stdout);
  }
}

}  // namespace penstock::bench
