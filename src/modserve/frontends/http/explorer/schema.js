// Schemas in a short notation: a question mark for members that may be left out, brackets for lists.

function schemaName(schema) {
  if (schema.$ref) {
    return schema.$ref.split("/").pop();
  }
  const choices = schema.oneOf || schema.anyOf;
  if (choices) {
    return choices.map(schemaName).filter((name) => name !== "null").join(" | ");
  }
  if (schema.const !== undefined) {
    return JSON.stringify(schema.const);
  }
  if (schema.enum) {
    return schema.enum.map((each) => JSON.stringify(each)).join(" | ");
  }
  if (schema.type === "array") {
    return `[${schemaName(schema.items || {})}]`;
  }
  return [schema.type || "any"].flat().join(" | ");
}

function schemasBelow(schema, names = []) {
  for (const each of [schema.$ref || "", schema.items, ...(schema.oneOf || []), ...(schema.anyOf || [])]) {
    if (each && typeof each === "object") {
      schemasBelow(each, names);
    } else if (each && !names.includes(each.split("/").pop())) {
      names.push(each.split("/").pop());
    }
  }
  return names;
}

function members(schema) {
  const required = new Set(schema.required);
  const lines = Object.entries(schema.properties || {}).map(([name, each]) =>
    `  ${name}${required.has(name) ? "" : "?"}: ${schemaName(each)}`);
  return lines.length ? `{\n${lines.join("\n")}\n}` : schemaName(schema);
}

function schemaText(title, schema, schemas) {
  const names = schemasBelow(schema);
  for (let index = 0; index < names.length; index += 1) {
    for (const each of Object.values(schemas[names[index]].properties || {})) {
      schemasBelow(each, names);
    }
  }
  const whole = schema.properties ? members(schema) : schemaName(schema);
  return [`${title}: ${whole}`, ...names.map((name) => `${name} ${members(schemas[name])}`)].join("\n\n");
}

function operationSchemas(operation, schemas) {
  const parts = [];
  const body = operation.requestBody && operation.requestBody.content["application/json"];
  if (body) {
    parts.push(schemaText("request", body.schema, schemas));
  }
  const success = operation.responses["200"];
  for (const [type, content] of Object.entries((success && success.content) || {})) {
    if (content.schema && Object.keys(content.schema).length) {
      parts.push(schemaText(type === "application/json" ? "response" : `response, ${type}`, content.schema, schemas));
    }
  }
  const failures = Object.entries(operation.responses).filter(([status]) => status >= "400")
    .map(([status, failure]) => `${status}  ${failure.description}`);
  return [...parts, ...(failures.length ? [failures.join("\n")] : [])].join("\n\n");
}
