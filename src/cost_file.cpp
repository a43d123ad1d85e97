// SPDX-License-Identifier: Apache-2.0
#include <dynbatch/base/config.hpp>
#include <dynbatch/sim/cost_model.hpp>

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

namespace dynbatch::inline DYNBATCH_ABI {
namespace {

using Json = nlohmann::json;

CostResult fail(std::string error) {
  CostResult result;
  result.error = std::move(error);
  return result;
}

// Reads a coefficient of at most an hour as a whole number of 1 / `per_ms` milliseconds.
bool read_number(const Json& set, const char* key, bool required, double per_ms,
                 std::int64_t& value, std::string& problem) {
  constexpr double kLargestMs = 3.6e6;
  const auto found = set.find(key);
  if (found == set.end() && !required) {
    return true;
  }
  const double ms = found != set.end() && found->is_number() ? found->get<double>() : std::nan("");
  if (!(ms >= 0.0 && ms <= kLargestMs)) {
    problem =
        fmt::format("'{}' must be a number of milliseconds from 0 to {:.0f}", key, kLargestMs);
    return false;
  }
  value = std::llround(ms * per_ms);
  return true;
}

CostResult read_set(const Json& set, std::string_view file) {
  CostResult result;
  StepCost& cost = result.cost.model.cost;
  std::string problem;
  cost.version = 1;
  if (!set.is_object()) {
    return fail(fmt::format("{}: a cost set must be a JSON object", file));
  }
  if (set.contains("form") && !set.contains("a_ms")) {
    return fail(
        fmt::format("{}: sets given as formulas are not supported, only a_ms, b_ms_per_req, "
                    "c_ms_per_kv_token and d_ms_per_prefill_token",
                    file));
  }
  if (!read_number(set, "a_ms", true, 1e6, cost.fixed_ns, problem) ||
      !read_number(set, "b_ms_per_req", true, 1e9, cost.decode_row_ps, problem) ||
      !read_number(set, "c_ms_per_kv_token", true, 1e9, cost.kv_token_ps, problem) ||
      !read_number(set, "d_ms_per_prefill_token", true, 1e9, cost.prefill_token_ps, problem) ||
      !read_number(set, "host_overhead_ms", false, 1e6, result.cost.model.host_overhead.ns,
                   problem)) {
    return fail(fmt::format("{}: {}", file, problem));
  }
  const auto text_of = [&](const char* key, std::string_view otherwise) {
    const auto found = set.find(key);
    return found != set.end() && found->is_string() ? found->get<std::string>()
                                                    : std::string(otherwise);
  };
  result.cost.name = text_of("name", file);
  result.cost.source = text_of("source", file);
  if (const auto mape = set.find("mape"); mape != set.end() && mape->is_number()) {
    result.cost.mape_percent = mape->get<double>();
  }
  return result;
}

std::string known_names() {
  std::string names;
  for (const CostSet& set : kCostSets) {
    names += fmt::format("\n  {}", set.name);
  }
  return names;
}

}  // namespace

CostResult parse_cost(std::string_view text, std::string_view set_name, std::string_view file) {
  const Json json = Json::parse(text, nullptr, false);
  if (json.is_discarded()) {
    return fail(fmt::format("{}: not JSON", file));
  }
  if (!json.is_object() || !json.contains("sets")) {
    return read_set(json, file);
  }
  const Json& sets = json["sets"];
  if (!sets.is_array()) {
    return fail(fmt::format("{}: 'sets' must be an array", file));
  }
  if (set_name.empty() && sets.size() == 1) {
    return read_set(sets[0], file);
  }
  for (const Json& set : sets) {
    if (set.is_object() && set.contains("name") && set["name"] == set_name) {
      return read_set(set, file);
    }
  }
  return fail(set_name.empty()
                  ? fmt::format("{}: holds {} sets, name one as {}#NAME", file, sets.size(), file)
                  : fmt::format("{}: holds no set '{}'", file, set_name));
}

CostResult find_cost(const std::string& name_or_file) {
  for (const CostSet& set : kCostSets) {
    if (name_or_file == set.name) {
      CostResult result;
      result.cost = {set.name, set.source, set.model, set.mape_percent};
      return result;
    }
  }
  const std::size_t hash = name_or_file.rfind('#');
  const std::string path = name_or_file.substr(0, hash);
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file || text.empty()) {
    return fail(fmt::format("'{}' is neither a readable file nor a built-in cost set; these are{}",
                            path, known_names()));
  }
  return parse_cost(text, hash == std::string::npos ? "" : name_or_file.substr(hash + 1), path);
}

}  // namespace dynbatch::inline DYNBATCH_ABI
