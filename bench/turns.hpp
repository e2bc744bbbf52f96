#pragma once

#include <fmt/format.h>
#include <json/json.h>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>

namespace penstock::bench {

/// How bench/peers interleaves this program with others: each line of standard input asks for one round, and
/// gets its figures as a line of JSON. Until standard input ends, or a round has none.
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
