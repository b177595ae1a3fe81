// What the "Example" buttons of the panel fill in.

export const EXAMPLE_SCHEMA = {
  type: 'object',
  properties: {
    city: { type: 'string' },
    country: { type: 'string' },
    population: { type: 'integer', minimum: 0 },
  },
  required: ['city', 'country', 'population'],
  additionalProperties: false,
};

export const EXAMPLE_TOOLS = [
  {
    type: 'function',
    function: {
      name: 'get_weather',
      description: 'The current weather in a city',
      parameters: {
        type: 'object',
        properties: { city: { type: 'string' }, unit: { type: 'string', enum: ['celsius', 'fahrenheit'] } },
        required: ['city'],
      },
    },
  },
];

// Offered where a conversation is still empty.
export const STARTERS = [
  'What is a penstock?',
  'What is 12 + 30?',
  'Answer as JSON: name and colour of a fruit.',
];
